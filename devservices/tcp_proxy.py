"""TCP proxies in front of any server: ``with running_tcp_proxies() as proxies: proxies.before(port).cut()``.

Rules:

1. Bytes pass unchanged and in order, and are not interpreted: the proxy that knows HTTP is devservices/proxy.py.
2. `TcpProxy.cut` resets every open connection and accepts new ones. `TcpProxy.stall` keeps connections open and passes
   nothing in either direction, as a lost network does; `TcpProxy.resume` passes the bytes that waited.
3. All proxies of a group run in one thread; their methods may be called from any thread.
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
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with a timeout of 0: close sends RST


class TcpProxy:
    """A port that forwards to another port. Made by `TcpProxies.before`."""

    def __init__(self, target_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = free_ports(1)[0]
        self._target_port = target_port
        self._loop = loop
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None

    def cut(self) -> None:
        """Reset every open connection."""
        self._loop.call_soon_threadsafe(self._reset)

    def stall(self) -> None:
        """Pass nothing until `resume`."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        """Pass data again."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    async def listen(self) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._connect, HOST, self.port)

    async def close(self) -> None:
        """Stop listening and reset all connections."""
        if self._server is not None:
            self._server.close()
        self._flowing.set()
        self._reset()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._open |= pair
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._open -= pair
            for end in pair:
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The two ends handle a broken connection; the proxy only closes its side.
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.transport.abort()

    def _reset(self) -> None:
        for writer in self._open:
            connection = cast("socket.socket", writer.get_extra_info("socket"))
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class TcpProxies:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._proxies: list[TcpProxy] = []

    def before(self, target_port: int) -> TcpProxy:
        """A new proxy in front of a loopback port; no server has to listen on that port yet."""
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
        asyncio.run_coroutine_threadsafe(_cancel_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_tasks() -> None:
    """Cancel the connections' tasks and wait until they end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
