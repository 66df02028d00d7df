"""A TCP link between a client and a server that can be cut, slow, or dead without anybody being told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """``with Proxy(broker.url) as link, Worker(CELERY_BROKER_URL=link.url): link.cut()``."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._latency = 0.0
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        #: Bytes until the next cut, in each direction; 0: there is none to come.
        self._left = {self._requests: 0, self._answers: 0}
        self.port = 0
        #: How many connections were made so far.
        self.connections = 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        self.restore()
        return self

    def __exit__(self, *exc: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The server's URL, by way of this link."""
        user, at, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        self._do(self._cut())

    def cut_after(self, *, requests: int = 0, answers: int = 0) -> None:
        """Let so many more bytes pass in one direction, and then reset all connections; new ones are welcome.

        So the cut hits a message in its middle, and not the silence between two of them.
        """
        self._left[self._requests], self._left[self._answers] = requests, answers

    @property
    def is_cutting(self) -> bool:
        """Whether a cut is still to come."""
        return any(self._left.values())

    def blip(self) -> None:
        """Reset all connections; new ones are welcome."""
        self.cut()
        self.restore()

    def lead_to(self, url: str) -> None:
        """New connections end at another server."""
        self._target = urlsplit(url)

    def delay(self, seconds: float) -> None:
        """Every packet takes this long, in both directions."""
        self._latency = seconds

    def half_open(self, *, requests: bool = True, answers: bool = True) -> None:
        """Forward nothing any more and close nothing, as when a machine vanished; nobody is told.

        With ``requests=False`` only the answers are held back: what was asked is done, and nobody knows.
        """
        self._do(self._hold(requests, answers))

    def restore(self) -> None:
        """A good link again: what was held back arrives."""
        self._latency = 0.0
        self._do(self._restore())

    # In the thread of the loop

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _restore(self) -> None:
        self._requests.set()
        self._answers.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _hold(self, requests: bool, answers: bool) -> None:
        for flowing, held in ((self._requests, requests), (self._answers, answers)):
            if held:
                flowing.clear()

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _end(self) -> None:
        await self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            self._close(writer)
            return
        self._writers.add(far_writer)
        await asyncio.gather(
            self._pump(reader, far_writer, self._requests), self._pump(far_reader, writer, self._answers)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        try:
            while data := await reader.read(65536):
                await asyncio.sleep(self._latency)
                await flowing.wait()
                if left := self._left[flowing]:
                    self._left[flowing] = max(0, left - len(data))
                    if len(data) >= left:
                        writer.write(data[:left])
                        await writer.drain()
                        await self._cut()
                        await self._restore()
                        return
                writer.write(data)
                await writer.drain()
            await flowing.wait()
        except OSError:
            pass
        finally:
            self._close(writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()
