"""Listens for this worker, and wakes a process: LISTEN on PostgreSQL, a look at the file's version on SQLite."""

import random
import select
import threading
import time
import uuid
from collections.abc import Collection
from typing import Any

from django.db import Error, connections

from jobs import extensions, store
from jobs.conf.logs import logger
from jobs.lifecycle.wakeups import ANSWERS, CHANNEL, ONE, SOME, WAITS, News, wakeup
from jobs.lifecycle.worker_state import IDLE, worker_state
from jobs.maintenance import clock
from jobs.store import databases
from jobs.store.notifications import Notifications

#: A caller does not notify of each job. The listener looks again after these seconds, and finds the other jobs.
AFTER = (0.025, 0.06)

#: Seconds between the looks of nodes. For one new job one node looks at once, and the next nodes in turn, because the
#: first one may be busy or dead. A look that finds the job taken costs no claim.
TURN = 0.0125

#: Seconds between two looks at the version of an SQLite file: while something changes, and after a quiet while.
BUSY_LOOK, IDLE_LOOK, QUIET = 0.01, 0.02, 1.0

#: Seconds until LISTEN is tried again.
RECONNECT = 1.0

#: The queues of each live node, as far as this node knows.
living: dict[uuid.UUID, Collection[str]] = {}


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
        # Its looks go over the same connection.
        connections[alias] = connection
        notifications = Notifications(connection, CHANNEL)
        # A notification that was sent before LISTEN was lost.
        _look(alias)
        told, looks = notifications.heard(), list[float]()
        rested = until = 0.0
        while not stopping.is_set():
            timeout = max(0.0, looks[0] - time.monotonic()) if looks else 1.0
            select.select([notifications], [], [], 0.0 if told else timeout)
            heard, told = [News.read(text) for text in (*told, *notifications.heard())], []
            now = time.monotonic()
            names, queues = {news.queue for news in heard}, worker_state.queues
            if WAITS in names:
                worker_state.answers_until = now + ANSWERS
            ours = [news for news in heard if news.queue in queues]
            turns = [news.turn(worker_state.node, living) for news in ours]
            if 0 in turns:
                wakeup.send(ONE if sum(news.jobs for news in ours) == 1 else SOME)
            for hear in extensions.through("heard") if heard else ():
                hear(names)
            # A stream of news must not put off the next look.
            looks = sorted([*looks[:1], *(now + pause for pause in _pauses(min(turns)))]) if turns else looks
            if (rests_until := worker_state.rests_until) != rested:
                # All nodes of these queues together look as often as a few would.
                nodes = sum(any(queue in each for queue in queues) for each in living.values())
                rested, until = rests_until, rests_until + random.uniform(0.0, nodes * TURN)
            if looks and now >= looks[0] and until > now:
                # A look would find what no claim may take.
                looks = sorted({until, *(look for look in looks if look > until)})
            elif looks and now >= looks[0]:
                looks = [look for look in looks if look > now]
                _look(alias)
                # Notifications that came meanwhile were read with the answer.
                told = notifications.heard()


def _pauses(turn: int) -> tuple[float, ...]:
    """The seconds until the next looks of a node with this turn."""
    if turn == 0:
        return AFTER
    return (turn * TURN, AFTER[1]) if turn * TURN <= AFTER[0] else (random.uniform(*AFTER),)


def _look(alias: str) -> None:
    try:
        if any(slot.phase == IDLE for slot in worker_state.occupied()) and clock.has_ready(alias, worker_state.queues):
            wakeup.send()
    except Error:
        databases.drop(alias)


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
