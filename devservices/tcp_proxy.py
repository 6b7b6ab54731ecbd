"""TCP proxies before any server: ``with running_tcp_proxies() as proxies: proxies.before(port).cut()``.

Rules:

1. Bytes pass unchanged and in order. They are not interpreted here: devservices/proxy.py is the proxy that knows
   HTTP.
2. `TcpProxy.cut` resets every connection that is there now; new ones are welcome. `TcpProxy.stall` lets connections
   live and nothing pass, in both directions, as a network that is gone; `TcpProxy.resume` lets what waited pass.
3. All of a group's proxies run in one thread; their methods may be called from any.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from devservices.ports import HOST, free_ports

_CHUNK_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: close says RST


class TcpProxy:
    """One port that leads to another one. Made by `TcpProxies.before`."""

    def __init__(self, target_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = free_ports(1)[0]
        self._target_port = target_port
        self._loop = loop
        self._open: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None

    def cut(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(self._reset)

    def stall(self) -> None:
        """Let nothing pass until `resume`."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def resume(self) -> None:
        """Let everything pass again."""
        self._loop.call_soon_threadsafe(self._flows.set)

    async def listen(self) -> None:
        """Begin."""
        self._server = await asyncio.start_server(self._connect, HOST, self.port)

    async def close(self) -> None:
        """End, and all connections with it."""
        if self._server is not None:
            self._server.close()
        self._flows.set()
        self._reset()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        ours = {writer, far_writer}
        self._open |= ours
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._open -= ours
            for one in ours:
                one.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A connection that breaks is the two ends' affair; here it only ends.
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.transport.abort()

    def _reset(self) -> None:
        for writer in self._open:
            found = cast("socket.socket", writer.get_extra_info("socket"))
            with suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class TcpProxies:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._proxies: list[TcpProxy] = []

    def before(self, target_port: int) -> TcpProxy:
        """A new proxy before a port of the loopback interface; nothing need listen there yet."""
        proxy = TcpProxy(target_port, self._loop)
        asyncio.run_coroutine_threadsafe(proxy.listen(), self._loop).result()
        self._proxies.append(proxy)
        return proxy

    def close(self) -> None:
        for proxy in self._proxies:
            asyncio.run_coroutine_threadsafe(proxy.close(), self._loop).result()


@contextmanager
def running_tcp_proxies() -> Iterator[TcpProxies]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tcp-proxies", daemon=True)
    thread.start()
    proxies = TcpProxies(loop)
    try:
        yield proxies
    finally:
        proxies.close()
        asyncio.run_coroutine_threadsafe(_settle(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _settle() -> None:
    """Let the connections' tasks end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
