"""Free TCP ports on the loopback interface.

Rule: none is in the range from which the operating system takes the ports of outgoing connections. A server that was
killed would find such a port taken now and then when it comes back: by any client on this machine, even by one of its
own, which while it tries to reconnect to a port of that range can be connected to itself.
"""

import random
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

HOST = "127.0.0.1"

_LOWEST = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_OUTGOING = 32_768  # Linux's; the others begin higher
_ENOUGH = 1000


def free_ports(count: int) -> list[int]:
    """As many different ports that nothing listens on.

    They are free when this returns, not forever: who starts a server on one checks that it came up.
    """
    with ExitStack() as held:
        ports: list[int] = []
        for port in _candidates():
            found = held.enter_context(socket.socket())
            with suppress(OSError):  # it is taken
                found.bind((HOST, port))
                ports.append(found.getsockname()[1])
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
    """Wait until nothing listens on the port any more, as before a server is started on it again."""
    deadline = time.monotonic() + timeout_s
    while is_open(port) and time.monotonic() < deadline:
        time.sleep(0.05)


def _candidates() -> list[int]:
    """Ports in an order that no other process has; 0, for any, where the range leaves too few."""
    outgoing = int(_OUTGOING.read_text("ascii").split()[0]) if _OUTGOING.exists() else _USUAL_OUTGOING
    if outgoing - _LOWEST < _ENOUGH:
        return [0] * _ENOUGH
    return random.SystemRandom().sample(range(_LOWEST, outgoing), outgoing - _LOWEST)
