"""Where the server listens.

Owns addresses: what is wrong with one is found out before gRPC tries, so that it can be said in
one line, and a socket file that a dead server left behind is taken away.
"""

from __future__ import annotations

import os
import socket
import stat
from ipaddress import ip_address

from innkeeper_server.config import UNIX

__all__ = ["StartError", "is_local", "joined", "make_free"]

ANSWER_WITHIN = 2.0  # seconds for whoever may sit on a socket file


class StartError(Exception):
    """The server cannot start; the text is one line that says why."""


def make_free(address: str) -> None:
    """Make sure that one can listen on the address, or raise StartError naming it."""
    try:
        if address.startswith(UNIX):
            _free_path(address.removeprefix(UNIX))
        else:
            _free_port(*split(address))
    except OSError as fault:
        raise StartError(f"cannot listen on {address}: {_words(fault)}") from None


def split(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined(address: str, port: int) -> str:
    """The address with the port that was really taken."""
    if address.startswith(UNIX):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def is_local(address: str) -> bool:
    """Whether only this machine can reach the address."""
    if address.startswith(UNIX):
        return True
    host, _ = split(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free_port(host: str, port: int) -> None:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if port == 0:
        return
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)


def _free_path(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(None, "the file is there, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_WITHIN)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(None, "another server answers there")


def _words(fault: OSError) -> str:
    text = fault.strerror or str(fault)
    return text[:1].lower() + text[1:]
