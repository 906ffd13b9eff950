"""The process that serves MLflow's pages: `python -m orchestrator.tracking.site.server`.

Its words are the number of an open socket that it listens on, the folder of artifacts as a URL, and
the name of the cookie. The store's address is in the environment, and the token comes by standard
input: other accounts can see a process's words.
"""

from __future__ import annotations

import os
import socket
import sys

import uvicorn  # which MLflow brings

from orchestrator.tracking.mlflow_compat import STORE, web_application
from orchestrator.tracking.site.gate import TokenGate


def main() -> None:
    """Serve until a signal comes."""
    descriptor, artifacts, cookie = sys.argv[1:]
    token = sys.stdin.readline().strip()
    if not token:
        sys.exit("no token came by standard input; start this by tinyattn ui")
    gate = TokenGate(web_application(os.environ[STORE], artifacts), token, cookie)
    # A line for each request would show the address, thus the token.
    settings = uvicorn.Config(gate, access_log=False, log_level="warning")
    uvicorn.Server(settings).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main()
