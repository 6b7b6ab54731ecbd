"""Free TCP ports on the loopback interface.

Rules:

1. No port is in the range from which the operating system takes the ports of outgoing connections. A killed server
   that restarts could find such a port in use: by any client on this machine, even by its own client, because a
   client that reconnects to a port of that range can connect to itself.
2. A port is given once: a server may take seconds to start, while other processes look for ports of theirs. On Linux a
   process holds a name for each of its ports, which the system forgets when the process has ended.
"""

import random
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

HOST = "127.0.0.1"

_LOWEST = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_OUTGOING = 32_768  # Linux's default; other systems start higher
_MINIMUM_PORTS = 1000
_given: list[socket.socket] = []
"""What holds the names of this process's ports."""


def free_ports(count: int) -> list[int]:
    """``count`` different ports without a listener.

    A port is free when this returns, and can be taken later: a caller that starts a server on it checks that the server
    came up.
    """
    with ExitStack() as held:
        ports: list[int] = []
        for port in _candidates():
            bound = held.enter_context(socket.socket())
            with suppress(OSError):  # in use
                bound.bind((HOST, port))
                number = bound.getsockname()[1]
                if _is_ours(number):
                    ports.append(number)
            if len(ports) == count:
                return ports
    msg = "no free port is left"
    raise OSError(msg)


def is_open(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def wait_until_closed(port: int, timeout_s: float = 60) -> None:
    """Wait until nothing listens on the port, for at most ``timeout_s``; then a server can start there again."""
    deadline = time.monotonic() + timeout_s
    while is_open(port) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_ours(port: int) -> bool:
    """Whether no process on this machine was given the port before, as far as is known."""
    if sys.platform == "linux":
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0kafka-delta-express port {port}")
        except OSError:
            name.close()
            return False
        _given.append(name)
    return True


def _candidates() -> list[int]:
    """Ports in random order, which no other process shares; zeros, for any port, if the range has too few."""
    outgoing = int(_OUTGOING.read_text("ascii").split()[0]) if _OUTGOING.exists() else _DEFAULT_OUTGOING
    if outgoing - _LOWEST < _MINIMUM_PORTS:
        return [0] * _MINIMUM_PORTS
    return random.SystemRandom().sample(range(_LOWEST, outgoing), outgoing - _LOWEST)
