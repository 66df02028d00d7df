"""Listens for this worker, and wakes a process: LISTEN on PostgreSQL, a look at the file's version on SQLite."""

import random
import select
import threading
import time
import uuid
from collections.abc import Container, Mapping
from hashlib import blake2b
from typing import Any

from django.db import Error, connections

from jobs import extensions, store
from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.listening.news import CHANNEL, News
from jobs.contrib.listening.notifications import Notifications
from jobs.doors import Attempt
from jobs.lifecycle.wakeups import ONE, SOME, wakeup
from jobs.lifecycle.worker_state import IDLE, worker_state
from jobs.maintenance.rescue import Rescue
from jobs.store import databases

#: A caller does not notify of each job. The listener looks again after these seconds, and finds the other jobs.
AFTER = (0.025, 0.06)

#: Seconds between the looks of nodes. For one new job one node looks at once, and the next nodes in turn, because the
#: first one may be busy or dead. A look that finds the job taken costs no claim.
TURN = 0.0125

#: Seconds between two looks at the version of an SQLite file: while something changes, and after a quiet while.
BUSY_LOOK, IDLE_LOOK, QUIET = 0.01, 0.02, 1.0

#: Seconds until LISTEN is tried again.
RECONNECT = 1.0


def run(stopping: threading.Event, attempt: Attempt) -> None:
    """Listen at all databases until the supervisor ends. Then tell the extensions, whose threads may wait for news."""
    for thread in filter(None, [listener_of(alias, stopping) for alias in conf().DATABASES]):
        thread.start()
    stopping.wait()
    for hear in extensions.through("heard"):
        hear(None)


def listener_of(alias: str, stopping: threading.Event) -> threading.Thread | None:
    """The thread that listens at this database; None where only a poll finds jobs."""
    at = store.of(alias)
    listen = _listen if at.has_notify else _watch if at.has_one_writer else None
    if listen is None:
        return None
    return threading.Thread(target=_forever, args=(listen, alias, stopping), name=f"jobs-listen-{alias}", daemon=True)


def _forever(listen: Any, alias: str, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            listen(alias, stopping)
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
            ours = [news for news in heard if news.queue in queues]
            turns = [turn_of(news, worker_state.node, Rescue.living) for news in ours]
            # First, because a short job may have ended a moment after the wake-up.
            for hear in extensions.through("heard") if heard else ():
                hear(names)
            if 0 in turns:
                wakeup.send(ONE if sum(news.jobs for news in ours) == 1 else SOME)
            # A stream of news must not put off the next look.
            looks = sorted([*looks[:1], *(now + pause for pause in _pauses(min(turns)))]) if turns else looks
            if (rests_until := worker_state.rests_until) != rested:
                # All nodes of these queues together look as often as a few would.
                nodes = sum(any(queue in each for queue in queues) for each in Rescue.living.values())
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


def turn_of(news: News, node: uuid.UUID, others: Mapping[uuid.UUID, Container[str]]) -> int:
    """The node's place in the line of those that look for these jobs.

    With two new jobs the first two nodes have 0, and look at once. The next nodes look later, in case the nodes
    before them are busy or dead. The number of the news shuffles the line. All nodes know the same nodes, roughly.

    Parameters:
        others: the queues of each node that lives.
    """
    mine = _place(news, node)
    before = sum(news.queue in queues and _place(news, each) < mine for each, queues in others.items())
    return max(0, before + 1 - news.jobs)


def _place(news: News, node: uuid.UUID) -> bytes:
    return blake2b(node.bytes, key=news.number.to_bytes(8), digest_size=8).digest()


def has_ready(using: str, queues: list[str]) -> bool:
    """Whether a job waits in one of the queues."""
    return store.of(using).has_ready(queues)


def _look(alias: str) -> None:
    try:
        is_idle = any(slot.phase == IDLE for slot in worker_state.occupied())
        if is_idle and extensions.instead(has_ready)(alias, worker_state.queues):
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
