"""Tells open pages that something changed: in each web process one thread looks, for all its streams (ASGI)."""

import asyncio
import select
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.models import Count, Sum

from jobs import store
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.inspection import by_time
from jobs.contrib.inspection.view import progress_of
from jobs.contrib.listening.news import CHANNEL
from jobs.contrib.listening.notifications import Notifications
from jobs.models import Job, Node, Pause, State
from jobs.store import databases

#: Seconds between two looks: without a notification, and at least. The end of a job sends none: each would pay for it.
LOOK, LEAST = 1.0, 0.2
#: Seconds after which a stream ends (the browser asks again, with the user's permissions at that time), and after which
#: a silent stream sends something, because proxies cut silent connections.
LIFE, ALIVE = 300.0, 15.0
#: Streams that a process serves at once: each is an open file, and the default limit is 1024. And the seconds after
#: which a page that got no stream asks again; it polls meanwhile.
STREAMS, FULL = 100, 60
OLDEST = 200  #: How many running jobs, the oldest ones, are looked at for progress.


def look() -> list[Any]:
    """A few values, read by indexes, that differ whenever a page may have changed."""
    found: list[Any] = []
    for alias in conf().DATABASES:
        jobs = Job.objects.using(alias)
        running = jobs.filter(state=State.RUNNING)
        oldest = list(running.order_by("started_at").defer("args", "kwargs", "result", "error", "errors")[:OLDEST])
        found += [
            *(rows.values_list("pk").first() for rows in by_time.kinds(jobs)),
            jobs.filter(finished_at__isnull=False).order_by("-finished_at").values_list("finished_at").first(),
            jobs.filter(state=State.SCHEDULED).order_by("run_at").values_list("run_at").first(),
            running.aggregate(Count("pk"), Sum("lease")),
            [(job.pk, job.lease) for job in oldest],
            progress_of(oldest, is_veiled=False),
            list(Pause.objects.using(alias).order_by("queue").values_list("queue")),
        ]
    nodes = Node.objects.using(databases.home()).filter(dead_at=None).order_by("pk")
    return [*found, list(nodes.values_list("pk", "stopping_at"))]


class Watch:
    """The streams that watch in this process. Its thread and connections exist as long as there are streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._thread: threading.Thread | None = None
        self._changed_at = 0.0

    @property
    def is_full(self) -> bool:
        return len(self._watchers) >= STREAMS

    @contextmanager
    def joined(self, event: asyncio.Event, since: float) -> Iterator[bool]:
        """Set the event when something changes; at once if something may have changed since then (Unix time).

        False: this process serves no more streams.
        """
        with self._lock:
            is_full = self.is_full
            if not is_full:
                self._join(event, since)
        try:
            yield not is_full
        finally:
            with self._lock:
                self._watchers.pop(event, None)

    def _join(self, event: asyncio.Event, since: float) -> None:
        self._watchers[event] = asyncio.get_running_loop()
        if self._thread is None:
            self._changed_at = time.time()
            self._thread = threading.Thread(target=self._run, name="jobs-live", daemon=True)
            self._thread.start()
        if self._changed_at >= since - LOOK:
            event.set()

    def _run(self) -> None:
        """Look until no stream is left; try again while the database is away."""
        seen: list[Any] = []
        while not self._is_over():
            try:
                with ExitStack() as stack:
                    listening = [alias for alias in conf().DATABASES if store.of(alias).has_notify]
                    own = [stack.enter_context(databases.apart(alias)) for alias in listening]
                    sources = [Notifications(connection, CHANNEL) for connection in own]
                    while not self._is_over():
                        now = look()
                        if seen and now != seen:
                            self._tell()
                        seen = now
                        _sleep(sources)
                return
            except Exception as exc:
                # Pages ask by themselves every ten seconds.
                logger.debug("cannot look for changes: %s", exc, extra={"action": "live_failed"})
                time.sleep(LOOK)
            finally:
                connections.close_all()

    def _is_over(self) -> bool:
        with self._lock:
            if self._watchers:
                return False
            self._thread = None
            return True

    def _tell(self) -> None:
        with self._lock:
            self._changed_at = time.time()
            for event, loop in self._watchers.items():
                # Race: the loop may just have been closed; its watchers are about to leave.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(event.set)


watch = Watch()


def _sleep(sources: list[Notifications]) -> None:
    """Sleep until a notification of a new job, or for :data:`LOOK`."""
    time.sleep(LEAST)
    heard, _, _ = select.select(sources, [], [], LOOK - LEAST)
    for source in heard:
        source.heard()


async def stream(since: float) -> AsyncIterator[str]:
    """Server-sent events: each says that something changed. For users who may see jobs.

    Parameters:
        since: when the asking page was made (Unix time).
    """
    # The request's own connections are not needed while the stream is open.
    await sync_to_async(connections.close_all)()
    event, end = asyncio.Event(), time.monotonic() + LIFE
    with watch.joined(event, since) as is_in:
        if not is_in:
            # Race: the view found a free place, but other streams took it first.
            yield f"retry: {FULL * 1000}\n\n"
            return
        yield "retry: 2000\n\n"
        while (left := end - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(left, ALIVE)):
                    await event.wait()
            except TimeoutError:
                yield ":\n\n"
            else:
                event.clear()
                yield "data: changed\n\n"
