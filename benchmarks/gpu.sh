#!/usr/bin/env bash
# All that is to be measured on a GPU, unattended, in under ten minutes:
#
#     TINYATTN_DATA=... benchmarks/gpu.sh [folder]
#
# The tests marked `gpu`; what a step costs by each way of running it (benchmarks.speed) on PLMs of
# two sizes, and as CUDA graphs (benchmarks.graphs); trial-steps a second by packing and by several
# processes, without and with MPS (benchmarks.throughput). The folder (runs/bench/gpu) gets table.txt
# and gpu.json.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-runs/bench/gpu}")
python=.venv/bin/python
make --quiet setup
if ! $python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "no CUDA device here, or a torch without CUDA; \`tinyattn doctor\` says more" >&2
  exit 2
fi
mkdir -p "$out"
rm -f "$out"/*.json
exec > >(tee "$out/table.txt") 2>&1
$python -c 'import torch; print(torch.__version__, torch.cuda.get_device_name(0))'

# A part that fails or takes too long leaves out its own figures, and says so; the script ends with 1.
failed=0
part() {
  local limit=$1
  shift
  echo "== $*"
  timeout "$limit" "$@" || { echo "== that ended with $?"; failed=1; }
}

part 120 $python -m pytest -q -m gpu
for shape in roberta-base roberta-large; do
  part 115 $python -m benchmarks.speed --plm "shape:$shape" --repeats 3 --json "$out/speed-$shape.json"
done
part 60 $python -m benchmarks.graphs --repeats 3 --json "$out/graphs.json"
part 90 $python -m benchmarks.throughput --plm shape:roberta-base --repeats 3 --json "$out/throughput.json"
if command -v nvidia-cuda-mps-control > /dev/null; then
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
  nvidia-cuda-mps-control -d
  part 90 $python -m benchmarks.throughput --plm shape:roberta-base --repeats 3 --json "$out/throughput-mps.json"
  echo quit | nvidia-cuda-mps-control
else
  echo "== without MPS: there is no nvidia-cuda-mps-control"
fi

$python - "$out" << 'PYTHON'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
parts = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
(folder / "gpu.json").write_text(json.dumps(parts, indent=1))
print(f"{len(parts)} parts are in {folder / 'gpu.json'}, what was printed in {folder / 'table.txt'}")
PYTHON
exit $failed
