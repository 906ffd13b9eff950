"""Where processes listen, as the system tells it, not they."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable

import psutil


def listening(pids: Iterable[int]) -> dict[str, str]:
    """Addresses with ports where some of these processes listen, and the name of one that does."""
    wanted, found = set(pids), {}
    for socket in psutil.net_connections("inet"):
        if socket.pid in wanted and socket.laddr and not socket.raddr:
            with contextlib.suppress(psutil.NoSuchProcess):
                name = psutil.Process(socket.pid).name()
                found[f"{socket.laddr.ip} {socket.laddr.port}"] = f"{name} {socket.status}"
    return found


def family() -> list[int]:
    """This process and all below it."""
    own = psutil.Process()
    return [own.pid, *(child.pid for child in own.children(recursive=True))]


def assert_loopback_only(found: dict[str, str]) -> None:
    """Something listens, and nothing where another machine would reach it."""
    assert found
    assert {a: n for a, n in found.items() if not is_loopback(a)} == {}


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own alone."""
    found = ipaddress.ip_address(address.split()[0].partition("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
