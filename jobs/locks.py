"""``lock()``: one at a time, across processes and machines. It saves work; the database gives correctness.

What no lock of this kind does (Kleppmann, "How to do distributed locking"): a holder that is paused for longer than the
TTL, and a Redis that fails over, is flushed or evicts, let two work at the same time, and neither notices in time.
Without its store everybody works at once. So what must not happen twice needs a guard of its own in the database: a row
lock, a marker, a constraint, or the fencing token that the lock yields::

    with lock("import:7", ttl=30) as token:
        rows = fetch()
        Import.objects.filter(pk=7, fence__lt=token).update(rows=rows, fence=token)  # 0 rows: a later holder wrote

The lock is released at the end of the block. In an atomic task's body that is before the commit, and the next holder
does not see yet what this one wrote. ``lock=`` of the task is released after the commit.

Redis (django-redis, ``JOBS["LOCK_CACHE"]``) holds a lock for its TTL, renewed as long as the block runs. The database,
where there is no Redis, holds a job's lock exactly as long as that run lasts, and others' for their TTL. In both the
owner is the job and its lease: the next run of a job takes the lock over from the one that died, and never the other
way round.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import Error, IntegrityError
from django.utils.module_loading import import_string

from jobs import current
from jobs.conf import conf
from jobs.databases import SideDatabase
from jobs.errors import Busy
from jobs.keys import joined
from jobs.models import Job, State

logger = logging.getLogger("jobs")

#: Seconds that Redis has for an answer. The project's cache may be patient; a job must not hang on what saves work.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 0.5, 1.0

#: Seconds for which the database remembers the last fencing token of a lock that nobody holds.
REMEMBERED = 86400.0


def lock(*key: str | int, ttl: float = 30.0, wait: float = 0.0) -> AbstractContextManager[int]:
    """Hold the lock for a block; a context manager that yields a fencing token.

    Parameters:
        key: one or several parts, ``lock("import", 7)``. A task's ``lock=`` of the same text is the same lock.
        ttl: seconds for which the lock outlives a holder that died or hangs; renewed while the block runs.
        wait: seconds to wait for another holder. In a task's body leave it at 0: the job comes back by itself.

    Returns:
        The token: a whole number that is larger with every holder, also after Redis lost its data.

    Raises:
        jobs.Busy: somebody else has it. In a task's body let it pass: the job snoozes, and uses no attempt.
        TypeError, ValueError: a key that cannot be kept, a ``ttl`` below ``JOBS["HEARTBEAT"]``.
        RuntimeError: the block is inside another one of the same key, and would wait for itself.
    """
    name = joined(key, "lock()")
    check_ttl(ttl, "lock(): ttl")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < float("inf"):
        raise ValueError(f"lock(): wait={wait!r} must be seconds, 0 or more")
    return _hold(name, float(ttl), float(wait))


def check_ttl(ttl: Any, what: str) -> None:
    """Refuse a lock that a live holder could not renew in time.

    Raises:
        TypeError, ValueError: names the cure.
    """
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise TypeError(f"{what}={ttl!r} must be a number of seconds")
    if not conf().HEARTBEAT <= ttl < float("inf"):
        raise ValueError(
            f"{what}={ttl!r} must be at least JOBS['HEARTBEAT'] ({conf().HEARTBEAT:g} s): a holder that is slow for a "
            "moment would lose it. Use 30; a job that died takes its own lock back at once, whatever its ttl"
        )


@dataclass(frozen=True, slots=True)
class Holder:
    key: str
    ttl: float
    #: Of this very block.
    token: uuid.UUID
    job: uuid.UUID | None
    lease: int

    def busy(self, job: object) -> Busy:
        return Busy(f"the lock {self.key!r} is held by " + (f"the job {job}" if job else "somebody who is no job"))


#: The locks of the blocks around this one.
_around: ContextVar[tuple[str, ...]] = ContextVar("jobs.locks", default=())


@contextmanager
def _hold(key: str, ttl: float, wait: float) -> Iterator[int]:
    if key in _around.get():
        raise RuntimeError(f"the lock {key!r} is held by a block around this one, which would wait for itself")
    job = current.job()
    holder = Holder(key, ttl, uuid.uuid4(), job.pk if job else None, job.lease if job else 0)
    store = _store(holder)
    owner = os.getpid()
    try:
        token = _acquire(store, holder, wait)
        keeper = _Keeper(store, holder) if store.expires else None
        before = _around.set((*_around.get(), key))
        try:
            if keeper is not None:
                keeper.start()
            yield token
        finally:
            _around.reset(before)
            # A child that was forked inside the block leaves it as well, and the lock is its parent's.
            if os.getpid() == owner:
                # Race: a renewal on its way would take the lock again.
                if keeper is not None:
                    keeper.stop()
                _release(store, holder)
    finally:
        store.close()


def _acquire(store: Store, holder: Holder, wait: float) -> int:
    deadline = time.monotonic() + wait
    pause = 0.05
    while True:
        try:
            return store.acquire()
        except Away as exc:
            _warn("lock_open", holder, f"is not taken, its store is away; the work goes on without it: {exc}")
            return time.time_ns() // 1000
        except Busy:
            if time.monotonic() >= deadline:
                raise
        # At no fixed time, or the same one might come too late again and again.
        time.sleep(min(random.uniform(0.5, 1) * pause, max(0.0, deadline - time.monotonic())))
        pause = min(1.0, pause * 2)


def _release(store: Store, holder: Holder) -> None:
    try:
        store.release()
    except Away as exc:
        _warn("lock_kept", holder, f"could not be released; it ends by itself: {exc}")


def _warn(action: str, holder: Holder, text: str) -> None:
    logger.warning("the lock %r %s", holder.key, text, extra={"action": action})


class _Keeper(threading.Thread):
    """Renews the lock of one block. A thread of the process that holds it: nothing of it has to survive a fork."""

    def __init__(self, store: Store, holder: Holder) -> None:
        super().__init__(name="jobs-lock", daemon=True)
        self._store = store
        self._holder = holder
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._holder.ttl / 3):
            try:
                if not self._store.renew():
                    _warn("lock_lost", self._holder, "was lost: this holder was too slow, and another one has it")
                    return
            except Away as exc:
                _warn("lock_not_renewed", self._holder, f"could not be renewed: {exc}")

    def stop(self) -> None:
        self._over.set()
        if self.ident is not None:
            self.join()


class Away(Exception):
    """The store does not answer, or not with anything that could be relied on."""


class Store(Protocol):
    """Where one holder keeps its lock. Everything may raise :class:`Away`."""

    @property
    def expires(self) -> bool:
        """Whether the lock has to be renewed."""

    def acquire(self) -> int:
        """Take the lock and return the fencing token; raises ``Busy``."""

    def renew(self) -> bool:
        """False: another one has it."""

    def release(self) -> None:
        """Give it back, unless another one has it."""

    def close(self) -> None: ...


def _store(holder: Holder) -> Store:
    alias = conf().LOCK_CACHE
    if alias is not None and _is_redis(alias):
        return RedisStore(holder, alias)
    return DatabaseStore(holder)


# Redis


@cache
def _is_redis(alias: str) -> bool:
    try:
        from django_redis.cache import RedisCache
    except ImportError:
        return False
    if alias not in settings.CACHES:
        return False
    return issubclass(import_string(settings.CACHES[alias]["BACKEND"]), RedisCache)


@cache
def _scripts(alias: str) -> tuple[Any, Any, Any]:
    """The scripts, on a pool of our own to the cache's server.

    The project's pool has the patience of a cache, and its ``IGNORE_EXCEPTIONS`` makes "no answer" look like an answer.
    """
    from django_redis.pool import get_connection_factory
    from redis import ConnectionError, Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    configured: dict[str, Any] = settings.CACHES[alias]
    options: dict[str, Any] = {**configured.get("OPTIONS", {})}
    options["CONNECTION_POOL_KWARGS"] = {
        **options.get("CONNECTION_POOL_KWARGS", {}),
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
        # Once, and at once: Redis may have been restarted since this connection was used.
        "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
    }
    factory: Any = get_connection_factory(options)
    servers = configured["LOCATION"]
    # The first one is the primary.
    url = servers.split(",")[0] if isinstance(servers, str) else next(iter(servers))
    client = Redis(connection_pool=factory.get_connection_pool(factory.make_connection_params(url)))
    return client.register_script(_ACQUIRE), client.register_script(_RENEW), client.register_script(_RELEASE)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        _is_redis.cache_clear()
        _scripts.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobs.locks")

#: KEYS: the lock, the last fencing token. ARGV: holder, milliseconds, job, lease. The token is the server's time, or
#: one more than the last: it grows when Redis lost its data, and when its clock was put back.
_ACQUIRE = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local held = redis.call('GET', KEYS[1])
  local job, lease = string.match(held, '^(.-)/(%d+)/')
  local earlier = job == ARGV[3] and tonumber(lease) < tonumber(ARGV[4])
  if held ~= ARGV[1] and not earlier then
    return {0, job or ''}
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local now = redis.call('TIME')
local token = math.max(now[1] * 1000000 + now[2], tonumber(redis.call('GET', KEYS[2]) or 0) + 1)
redis.call('SET', KEYS[2], string.format('%.0f', token))
return {token, ''}
"""

#: A lock that is gone (evicted, flushed, a restart) is taken again: its holder still works.
_RENEW = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
"""


class RedisStore:
    expires = True

    def __init__(self, holder: Holder, alias: str) -> None:
        self._holder = holder
        self._alias = alias
        self._job = str(holder.job or "")
        self._value = f"{self._job}/{holder.lease}/{holder.token.hex}"
        self._ttl = int(holder.ttl * 1000)
        # With the prefix of the project's cache: several projects may share a Redis.
        names = (f"jobs:lock:{holder.key}", "jobs:fence")
        self._keys = [str(caches[alias].make_key(name)) for name in names]

    def acquire(self) -> int:
        token, job = self._run(0, self._keys, self._value, self._ttl, self._job, self._holder.lease)
        if not token:
            raise self._holder.busy(job.decode() if isinstance(job, bytes) else job)
        return int(token)

    def renew(self) -> bool:
        return bool(self._run(1, self._keys[:1], self._value, self._ttl))

    def release(self) -> None:
        self._run(2, self._keys[:1], self._value)

    def close(self) -> None:
        pass

    def _run(self, script: int, keys: list[str], *args: str | int) -> Any:
        from redis import RedisError

        try:
            return _scripts(self._alias)[script](keys=keys, args=args)
        except (RedisError, OSError) as exc:
            raise Away(str(exc)) from exc


# The database


@dataclass(frozen=True, slots=True)
class _Row:
    job: uuid.UUID | None
    lease: int
    token: uuid.UUID
    fence: int
    expires_at: float


class DatabaseStore:
    """A row, written over a connection of its own: seen by everybody at once, and part of nobody's transaction.

    The connection lasts as long as the lock: one that stayed open would keep test databases from being dropped.
    """

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._side = SideDatabase()

    @property
    def expires(self) -> bool:
        return self._holder.job is None

    def acquire(self) -> int:
        holder = self._holder
        now, row = self._read()
        if row is not None and not self._is_free(row, now):
            raise holder.busy(row.job)
        fence = max(row.fence + 1 if row else 0, int(now * 1_000_000))
        if not self._write(row, fence, now if holder.job else now + holder.ttl):
            raise Busy(f"somebody else was faster at the lock {holder.key!r}")
        return fence

    def _is_free(self, row: _Row, now: float) -> bool:
        if row.job is None:
            return row.expires_at <= now
        if row.job == self._holder.job:
            return row.lease < self._holder.lease
        return not is_running(row.job, row.lease)

    def _read(self) -> tuple[float, _Row | None]:
        with self._statements() as cursor:
            cursor.execute(f"SELECT {self._side.now}")
            now = float(cursor.fetchone()[0])
            cursor.execute(
                f"SELECT job, lease, token, fence, expires_at FROM jobs_lock WHERE {self._key} = %s", [self._holder.key]
            )
            found = cursor.fetchone()
        if found is None:
            return now, None
        job, lease, token, fence, expires_at = found
        return now, _Row(_uuid(job) if job else None, lease, _uuid(token), fence, expires_at)

    def _write(self, row: _Row | None, fence: int, expires_at: float) -> bool:
        """Race: several saw that it is free. One finds the row as it was read, or inserts it."""
        holder = self._holder
        values = [holder.job.hex if holder.job else None, holder.lease, holder.token.hex, fence, expires_at, holder.key]
        with self._statements() as cursor:
            if row is None:
                names = f"job, lease, token, fence, expires_at, {self._key}"
                try:
                    cursor.execute(f"INSERT INTO jobs_lock ({names}) VALUES (%s, %s, %s, %s, %s, %s)", values)
                except IntegrityError:
                    return False
            else:
                cursor.execute(
                    "UPDATE jobs_lock SET job = %s, lease = %s, token = %s, fence = %s, expires_at = %s "
                    f"WHERE {self._key} = %s AND token = %s AND expires_at = %s",
                    [*values, row.token.hex, row.expires_at],
                )
            return bool(cursor.rowcount == 1)

    def renew(self) -> bool:
        return self._set(f"expires_at = {self._side.now} + %s", self._holder.ttl)

    def release(self) -> None:
        # The row stays for a while, and with it the last token.
        self._set(f"job = NULL, expires_at = {self._side.now}")

    def _set(self, change: str, *values: float) -> bool:
        with self._statements() as cursor:
            cursor.execute(
                f"UPDATE jobs_lock SET {change} WHERE {self._key} = %s AND token = %s",
                [*values, self._holder.key, self._holder.token.hex],
            )
            return bool(cursor.rowcount == 1)

    def close(self) -> None:
        self._side.close()

    @property
    def _key(self) -> str:
        return "`key`" if self._side.vendor == "mysql" else '"key"'

    @contextmanager
    def _statements(self) -> Iterator[Any]:
        try:
            with self._side.cursor() as cursor:
                yield cursor
        except (Error, ImproperlyConfigured) as exc:
            raise Away(str(exc)) from exc


def _uuid(value: Any) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))


def is_running(job: uuid.UUID, lease: int) -> bool:
    """Whether the run that took a lock still lasts."""
    return any(
        Job.objects.using(alias).filter(pk=job, state=State.RUNNING, lease=lease).exists() for alias in conf().DATABASES
    )


def prune(side: SideDatabase) -> None:
    """Forget the locks that nobody has held for :data:`REMEMBERED` seconds. Race: one is taken at this moment."""
    with side.cursor() as cursor:
        cursor.execute(
            f"SELECT token, job, lease FROM jobs_lock WHERE expires_at < {side.now} - %s LIMIT %s",
            [REMEMBERED, conf().BATCH],
        )
        old = [(_uuid(token), job, lease) for token, job, lease in cursor.fetchall()]
    for token, job, lease in old:
        if job is None or not is_running(_uuid(job), lease):
            with side.cursor() as cursor:
                cursor.execute("DELETE FROM jobs_lock WHERE token = %s", [token.hex])
