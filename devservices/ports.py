"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """As many different ports that nothing listens on.

    They are free when this returns, not for ever: who starts a server on one checks that it came up.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def is_open(port: int) -> bool:
    """Whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def wait_until_closed(port: int, timeout_s: float = 10) -> None:
    """Wait until nothing listens on the port any more, as before a server is started on it again."""
    deadline = time.monotonic() + timeout_s
    while is_open(port) and time.monotonic() < deadline:
        time.sleep(0.05)
