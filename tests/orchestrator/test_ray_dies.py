"""A driver hears at once that a process of its Ray has died; a socket stands for the process."""

from __future__ import annotations

import socket

import pytest

from orchestrator.execution import nodes


def test_a_connection_that_is_refused_means_death_and_a_closed_one_does_not() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()[:2]
    try:
        nodes._connect(address)
        first, _ = server.accept()
        first.sendall(b"greeting")
        nodes.refuse_dead_ray()
        first.close()  # as a server does that hears nothing for long
        nodes.refuse_dead_ray()
        second, _ = server.accept()
        nodes.refuse_dead_ray()
        server.close()
        second.close()  # as by the kernel
        with pytest.raises(nodes.RayDied):
            nodes.refuse_dead_ray()
    finally:
        server.close()
        for line in nodes._lines.values():
            line.close()
        nodes._lines.clear()
