"""Listens for this worker, and wakes a process: LISTEN on PostgreSQL, a look at the file's version on SQLite."""

import random
import select
import threading
import time
from typing import Any

from django.db import Error, connections

from jobs import extensions, store
from jobs.conf.logs import logger
from jobs.lifecycle.wakeups import ANSWERS, CHANNEL, WAITS, wakeup
from jobs.lifecycle.worker_state import IDLE, worker_state
from jobs.maintenance import clock
from jobs.store import databases

#: Callers notify once in a while and keep no timer. Looks find what they enqueued since, so many seconds after.
AFTER = (0.025, 0.06)

#: Seconds between two looks at the version of an SQLite file: while something changes, and after a quiet while.
BUSY_LOOK, IDLE_LOOK, QUIET = 0.01, 0.02, 1.0

#: A node that found nothing after so many notifications in a row answers the next one up to so many seconds later.
FRUITLESS, LATE = 3, 0.02

#: Seconds until LISTEN is tried again.
RECONNECT = 1.0


def listener_of(alias: str, stopping: threading.Event) -> threading.Thread | None:
    """The thread that listens at this database; None where only a poll finds jobs."""
    at = store.of(alias)
    run = _listen if at.has_notify else _watch if at.has_one_writer else None
    if run is None:
        return None
    return threading.Thread(target=_forever, args=(run, alias, stopping), name=f"jobs-listen-{alias}", daemon=True)


def _forever(run: Any, alias: str, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            run(alias, stopping)
        except Exception as exc:
            # Until it is back a poll finds the jobs.
            logger.debug("cannot listen at %s: %s", alias, exc, extra=worker_state.about("listen_failed"))
            stopping.wait(RECONNECT)


def _listen(alias: str, stopping: threading.Event) -> None:
    with databases.apart(alias) as connection:
        connection.ensure_connection()
        raw = connection.connection
        raw.execute(f"LISTEN {CHANNEL}")
        # What was sent before this moment was lost.
        _look(alias)
        looks: list[float] = []
        fruitless, finds = 0, worker_state.finds
        while not stopping.is_set():
            timeout = max(0.0, looks[0] - time.monotonic()) if looks else 1.0
            select.select([raw.fileno()], [], [], timeout)
            heard = _heard(raw.pgconn)
            now = time.monotonic()
            if WAITS in heard:
                worker_state.answers_until = now + ANSWERS
            for hear in extensions.through("heard") if heard else ():
                hear(heard)
            if not heard.isdisjoint(worker_state.queues):
                fruitless, finds = (fruitless + 1, finds) if worker_state.finds == finds else (0, worker_state.finds)
                if fruitless >= FRUITLESS:
                    # A notification reaches many nodes, and not all of them should come at once.
                    stopping.wait(random.uniform(0, LATE))
                wakeup.send()
                looks = [now + pause for pause in AFTER]
            elif looks and now >= looks[0]:
                looks = [look for look in looks if look > now]
                _look(alias)


def _heard(connection: Any) -> set[str]:
    """The queues that have news, without waiting; psycopg's own ``notifies()`` takes a hundred times as long."""
    connection.consume_input()
    heard = set()
    while (note := connection.notifies()) is not None:
        heard.add(note.extra.decode())
    return heard


def _look(alias: str) -> None:
    try:
        if any(slot.phase == IDLE for slot in worker_state.occupied()) and clock.has_ready(alias, worker_state.queues):
            wakeup.send()
    except Error:
        databases.drop(alias)
    finally:
        databases.give_back()


def _watch(alias: str, stopping: threading.Event) -> None:
    """``PRAGMA data_version`` changes when another connection has written; it costs microseconds."""
    connection = connections[alias]
    version, changed = -1, time.monotonic()
    try:
        with connection.cursor() as cursor:
            while not stopping.wait(BUSY_LOOK if time.monotonic() - changed < QUIET else IDLE_LOOK):
                cursor.execute("PRAGMA data_version")
                now = cursor.fetchone()[0]
                if now != version:
                    version, changed = now, time.monotonic()
                    for hear in extensions.through("heard"):
                        hear(None)
                    _look(alias)
    finally:
        connection.close()
