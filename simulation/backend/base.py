"""Connections as the cluster has them, over fewer that are real.

A process that runs jobs, and a caller, has a connection of its own to the server, with a session and a transaction of
its own. A supervisor's is real only while it works: in between no transaction of it is open. The database's clock is a
setting of the session, ``jobs.now``, which the schema's own ``statement_timestamp()`` reads.
"""

from __future__ import annotations

import datetime
from typing import Any

import psycopg
from django.db import OperationalError
from django.db.backends.postgresql import base

from simulation.world import EPOCH, Actor, Pipe, wait_for, world

#: Seconds until a notification has reached a node: the least and the most.
DELAY = (0.0002, 0.002)

#: Seconds between two ticks of the database's clock: most statements of a large cluster need not set it.
TICK = 0.005

IDLE = psycopg.pq.TransactionStatus.IDLE


class Server:
    """What the cluster's processes see of the one server."""

    def __init__(self) -> None:
        self.is_up = True
        #: Grows with each failover: what was open before is broken.
        self.term = 0
        self._pool: list[Any] = []
        self._broken: Any = None
        self.listening: list[Notifications] = []
        #: Hears the notifications of all, and hands them on.
        self.listener: Any = None
        self.has_notified = False
        self.open = self.most_open = self.notifications = self.heard = 0

    def broken(self) -> Any:
        return self._broken

    def start(self, url: str) -> None:
        self._pool.clear()
        self.listener = psycopg.connect(url, autocommit=True)
        self.listener.add_notify_handler(self._hear)
        self.listener.execute("LISTEN jobs_wakeup")
        self._broken = self._broken or psycopg.connect(url)
        self._broken.close()

    def fail(self) -> None:
        """All connections are broken, and no new one is to be had, until :meth:`start`."""
        self.is_up = False
        self.term += 1
        for raw in [*self._pool, self.listener]:
            raw.close()
        self._pool.clear()
        for each in self.listening:
            each.wake()

    def lend(self) -> Any:
        return self._pool.pop() if self._pool else None

    def take_back(self, raw: Any) -> None:
        self._pool.append(raw)

    def terminate(self, raw: Any) -> None:
        """The server's process is gone when this returns, and its transaction with it."""
        pid = raw.info.backend_pid if not raw.closed else 0
        raw.close()
        if pid and self.is_up:
            self.listener.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    def hand_on(self, actor: Actor) -> None:
        """After each piece of work: its notifications reach all that listen, a moment later."""
        for link in list(actor.links):
            link.put_back()
        if not self.has_notified or not self.is_up:
            return
        self.has_notified = False
        # With its answer the server sends what it has to tell.
        self.listener.execute("SELECT 1")

    def _hear(self, note: Any) -> None:
        self.notifications += 1
        for each in self.listening:
            delay = world.random.uniform(*DELAY)
            world.at(world.now + delay, lambda each=each: each.hear(note.payload))


server = Server()


class Notifications:
    """``jobs.contrib.listening.notifications.Notifications``: what a supervisor's listener hears."""

    def __init__(self, connection: Any, channel: str) -> None:
        connection.ensure_connection()
        self._link, self._pipe = connection._link, Pipe()
        self._told: list[str] = []
        server.listening.append(self)

    def fileno(self) -> Pipe:
        return self._pipe

    def wake(self) -> None:
        self._pipe.write(b".")

    def hear(self, text: str) -> None:
        if not self._link.is_broken:
            server.heard += 1
            self._told.append(text)
            self.wake()

    def heard(self) -> list[str]:
        if self._pipe.data:
            self._pipe.read(1 << 16)
        if self._link.is_broken:
            raise OperationalError("server closed the connection unexpectedly")
        told, self._told = self._told, []
        return told

    def is_of(self, link: Link) -> bool:
        return self._link is link


class Link:
    """A connection of an actor."""

    def __init__(self, actor: Actor, raw: Any) -> None:
        self.actor, self._raw = actor, raw
        self._term = server.term
        self.is_own = actor.process.name in ("child", "caller")
        self._is_cut = False
        actor.links.append(self)
        server.open += 1
        server.most_open = max(server.most_open, server.open)

    @property
    def is_broken(self) -> bool:
        node = self.actor.process.node
        self._is_cut |= node is not None and node.is_cut
        return self._is_cut or self._term != server.term

    def raw(self) -> Any:
        if self.is_broken:
            return server.broken()
        if self._raw is None:
            self._raw = server.lend() or connect(self.actor)
        set_clock(self._raw)
        return self._raw

    def put_back(self) -> None:
        """Nobody works over it at the moment."""
        raw = self._raw
        if raw is None or self.is_own or raw.closed or self.is_broken:
            return
        if raw.pgconn.transaction_status == IDLE:
            self._raw = None
            server.take_back(raw)

    def abandon(self) -> None:
        if self not in self.actor.links:
            return
        self.actor.links.remove(self)
        server.open -= 1
        server.listening = [each for each in server.listening if not each.is_of(self)]
        raw, self._raw = self._raw, None
        if raw is None:
            return
        if not self.is_own and self._term == server.term and raw.pgconn.transaction_status == IDLE and not raw.closed:
            server.take_back(raw)
        else:
            server.terminate(raw)


def set_clock(raw: Any) -> None:
    """The session's clock is the simulated one; a rollback takes back what was set in its transaction."""
    now = EPOCH + TICK * ((world.now + world.database_ahead) // TICK)
    status = raw.pgconn.transaction_status
    if (getattr(raw, "_sim_now", None) == now and (status != IDLE or not raw._sim_inside)) or status not in (0, 2):
        return
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat()
    if raw.pgconn.exec_(f"SET jobs.now = '{moment}'".encode()).status == psycopg.pq.ExecStatus.COMMAND_OK:
        raw._sim_now, raw._sim_inside = now, status != IDLE


class DatabaseWrapper(base.DatabaseWrapper):
    _link: Any = None

    def get_new_connection(self, conn_params: Any) -> Any:
        actor = world.actor
        if actor is None:
            raw = super().get_new_connection(conn_params)
            set_clock(raw)
            return raw
        node = actor.process.node
        if not server.is_up or (node is not None and node.is_cut):
            raise psycopg.OperationalError("connection failed: Connection refused")
        is_own = actor.process.name in ("child", "caller")
        self.isolation_level = base.IsolationLevel.READ_COMMITTED
        raw = (None if is_own else server.lend()) or super().get_new_connection(conn_params)
        return Link(actor, raw)

    @property
    def connection(self) -> Any:
        link = self._link
        if not isinstance(link, Link):
            if link is not None and not link.closed:
                set_clock(link)
            return link
        return link.raw()

    @connection.setter
    def connection(self, value: Any) -> None:
        if value is None or isinstance(value, Link) or world.actor is None:
            self._link = value

    def _close(self) -> None:
        if isinstance(self._link, Link):
            self._link.abandon()
        elif self._link is not None:
            super()._close()


def connect(actor: Actor) -> Any:
    """A real connection for one whose own was put back."""
    from django.db import connections

    wrapper = connections["default"]
    raw = base.DatabaseWrapper.get_new_connection(wrapper, wrapper.get_connection_params())
    raw.autocommit = True
    return raw


def select(read: Any, write: Any, other: Any, timeout: float | None = None) -> Any:
    """``select.select`` for simulated pipes."""
    pipes = [each if isinstance(each, Pipe) else each.fileno() for each in read]
    ready = wait_for(pipes, timeout)
    return [each for each, pipe in zip(read, pipes, strict=True) if pipe in ready], [], []
