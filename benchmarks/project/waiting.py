"""Async bodies: they wait for an answer over loopback HTTP, many at once, or do nothing."""

from __future__ import annotations

import asyncio
import os

from benchmarks.completions import record


async def ask() -> bytes:
    """One request, as short as HTTP can be: what is measured is not the client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["BENCH_SLOW_PORT"]))
    try:
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        return await reader.read()
    finally:
        writer.close()


async def waits(number: int) -> None:
    """Note the completion when the answer is there."""
    await ask()
    record(number)


async def anoop(number: int) -> None:
    """As ``noop``."""
    record(number)
