"""What is patched of datasets is there, and does the same."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ASKING = """
import sys
import datasets
from tinyattn.compat.datasets_compat import hub_left_alone

with hub_left_alone(sys.argv[1] == "alone"):
    try:
        datasets.load_dataset("own/rows")
    except Exception as error:
        print(type(error).__name__)
print(datasets.config.HF_HUB_OFFLINE)
"""


@pytest.mark.slow
def test_the_hub_is_asked_nothing_within_the_block_alone(tmp_path: Path) -> None:
    asked: list[str] = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    def ask(how: str) -> int:
        """How often the hub is asked for rows that it does not have."""
        before = len(asked)
        environment = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "HF_ENDPOINT": hub}
        done = subprocess.run(
            [sys.executable, "-c", ASKING, how],
            capture_output=True, text=True, timeout=280, check=False, env=os.environ | environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        failed, is_offline = done.stdout.split()
        assert failed != is_offline == "False"  # afterwards as before
        return len(asked) - before

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = f"http://127.0.0.1:{server.server_port}"
        assert ask("alone") == 0
        assert ask("as before") > 0
        server.shutdown()
