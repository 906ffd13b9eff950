"""What a PLM's layers below the first adapter make of a split's rows: computed once and kept.

Those layers are the same in every epoch and in every trial whose first adapter is as high, so their
output is a property of the rows: a file in the cache, which the processes of a machine map into
memory together. Without adapters all layers are below. It needs rows that stream, and no dropout in
the PLM.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import filelock
import numpy as np
import psutil
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from tinyattn.batches import Batches
from tinyattn.model import AdaptedModel
from tinyattn.passes import in_passes
from tinyattn.plm import Plm
from tinyattn.stream import Stream
from tinyattn.tasks.cache import cache_folder

_FORMAT = 1
_SHARE = 4
"""These files take at most so small a part of the room that is free, or that they have."""
_MAPPED = 4
"""Files of a split that a process maps at once."""
_DIGEST_BYTES = 16
"""At the end of a file, of what is before them."""
_OPEN: WeakKeyDictionary[Batches, dict[str, Bottom | None]] = WeakKeyDictionary()
_DIGESTS: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()


@dataclass(frozen=True)
class Bottom:
    """What goes into a layer, for each row of a split."""

    layer: int
    """Number of layer calls that are left out."""
    values: Tensor
    """[all tokens, H], mapped from a file."""
    offsets: np.ndarray
    """[rows + 1]: where each row's tokens begin."""

    def of(self, indices: np.ndarray, device: torch.device) -> Tensor:
        """Of these rows, one after the other: [1, N, H]."""
        spans = [self.values[self.offsets[i] : self.offsets[i + 1]] for i in indices]
        return torch.cat(spans)[None].to(device, non_blocking=True)


def bottom_of(model: AdaptedModel, plm: Plm, rows: Batches, layer: int) -> Bottom | None:
    """Open what goes into a layer; compute it first if that was never done.

    Args:
        model: the PLM, with hooks; nobody else runs it.
        plm: what `model` is made of.
        rows: of the split.
        layer: index of the first layer call with an adapter; their number, where none has one.

    Returns:
        None where it cannot be kept: nothing is below, a layer is called several times, rows do not
        stream, or disk or main memory have little room.
    """
    several = len(set(model.sites.calls)) < len(model.sites.calls)
    if layer == 0 or several or not model.can_stream():
        return None
    key = f"{layer} {_digest_of(plm)}"
    kept = _OPEN.setdefault(rows, {})
    if key not in kept:
        while len(kept) >= _MAPPED:
            kept.pop(next(iter(kept)))
        try:
            kept[key] = _opened(model, rows, layer, _name(key, rows))
        except OSError:  # it saves time, and is no reason to stop
            kept[key] = None
    return kept[key]


def _name(key: str, rows: Batches) -> str:
    """Of the file: what is computed, of which rows."""
    digest = hashlib.blake2b(f"{_FORMAT} {key}".encode(), digest_size=16)
    for name, values in rows.columns.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(values).data)
    digest.update(np.ascontiguousarray(rows.offsets).data)
    return digest.hexdigest()


def _digest_of(plm: Plm) -> str:
    """Of all that a PLM computes with. Its fingerprint overlooks number formats and settings."""
    if plm.model not in _DIGESTS:
        digest = hashlib.blake2b(transformers.__version__.encode(), digest_size=16)
        digest.update(plm.model.config.to_json_string().encode())
        for name, weight in plm.model.base_model.named_parameters():
            digest.update(f"{name} {weight.dtype}".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        _DIGESTS[plm.model] = digest.hexdigest()
    return _DIGESTS[plm.model]


def _opened(model: AdaptedModel, rows: Batches, layer: int, name: str) -> Bottom | None:
    shape = int(rows.offsets[-1] - rows.offsets[0]), model.plm.config.hidden_size
    # Machines that share a home each have their own: what one maps, another must not remove.
    folder = cache_folder() / "activations" / socket.gethostname()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.bin"
    with filelock.FileLock(f"{path}.lock"):  # the others of this machine wait for who computes it
        values = _mapped(path, shape, model.plm.dtype)
        if values is None and _make_room(folder, math.prod(shape) * model.plm.dtype.itemsize):
            _write(path, model, rows, layer)
            values = _mapped(path, shape, model.plm.dtype)
    return None if values is None else Bottom(layer, values, rows.offsets - rows.offsets[0])


def _mapped(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> Tensor | None:
    """The values of a file; None: it is not there, or damaged."""
    count = math.prod(shape)
    try:
        if path.stat().st_size != count * dtype.itemsize + _DIGEST_BYTES:
            return None
        values = torch.from_file(str(path), shared=False, size=count, dtype=dtype)
        with path.open("rb") as file:
            file.seek(-_DIGEST_BYTES, os.SEEK_END)
            wanted = file.read()
        os.utime(path)  # the longest unused one goes first
    except (FileNotFoundError, RuntimeError):  # another process made room meanwhile
        return None
    return values.view(shape) if _digest(values) == wanted else None


def _digest(values: Tensor) -> bytes:
    content = values.view(torch.uint8).numpy().data
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _make_room(folder: Path, size: int) -> bool:
    """Whether a file of that size has a place, perhaps of those that were not used for longest.

    It must fit into main memory too: from the disk at every step it would save no time.
    """
    for left in folder.glob("*.building"):  # by a process that was killed
        lock = filelock.FileLock(left.with_suffix(".bin.lock"), timeout=0)
        with contextlib.suppress(filelock.Timeout), lock:
            left.unlink(missing_ok=True)
    files: list[tuple[os.stat_result, Path]] = []
    for file in folder.glob("*.bin"):
        with contextlib.suppress(FileNotFoundError):
            files.append((file.stat(), file))
    files.sort(key=lambda found: found[0].st_mtime)
    taken = sum(about.st_size for about, _ in files)
    room = (shutil.disk_usage(folder).free + taken) // _SHARE
    if size > min(room, psutil.virtual_memory().available // _SHARE):
        return False
    for about, file in files:
        if taken + size <= room:
            break
        taken -= about.st_size
        file.unlink(missing_ok=True)  # who has mapped it keeps it
    return True


def _write(path: Path, model: AdaptedModel, rows: Batches, layer: int) -> None:
    """Run the layers below on all rows. Written, not mapped: a full disk is then an error."""
    building = path.with_suffix(".building")
    starts = rows.offsets - rows.offsets[0]
    device = next(model.plm.parameters()).device
    try:
        with building.open("wb") as file, _evaluating(model):

            def keep(indices: np.ndarray) -> None:
                found = _run(model, layer, rows.stream(indices, device))
                lengths = rows.lengths[indices]
                by_row = found[: lengths.sum()].split(lengths.tolist())  # filler is nobody's
                for start, own in zip(starts[indices], by_row, strict=True):
                    file.seek(int(start) * own.shape[1] * own.element_size())
                    file.write(own.contiguous().view(torch.uint8).numpy().data)

            in_passes(rows.lengths, True, keep)
            size = file.seek(0, os.SEEK_END)
            file.flush()
            file.write(_digest(torch.from_file(str(building), size=size, dtype=torch.uint8)))
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)


class _EnoughError(Exception):
    """What is above need not run."""


def _run(model: AdaptedModel, layer: int, stream: Stream) -> Tensor:
    """The output [N, H] of the first `layer` calls, on the host."""
    found: list[Tensor] = []

    def take(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)
        raise _EnoughError

    handle = model.sites.calls[layer - 1].register_forward_hook(take)
    try:
        model.run_bare(stream)
    except _EnoughError:
        pass
    finally:
        handle.remove()
    return found[0][0].cpu()


@contextlib.contextmanager
def _evaluating(model: AdaptedModel) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
