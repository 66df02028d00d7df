"""Where locks are kept: in Redis through django-redis, or in rows of the database where there is no Redis."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import Error, IntegrityError, OperationalError
from django.utils.module_loading import import_string

from jobs.conf import conf
from jobs.databases import SideDatabase, home, is_conflict, side
from jobs.errors import Busy
from jobs.models import Job, State

#: Seconds that Redis has for an answer. The project's cache may be patient; a job must not hang on what saves work.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 0.5, 1.0

#: Seconds for which the database remembers the last fencing token of a lock that nobody holds.
REMEMBERED = 86400.0


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

    def look(self) -> Held | None:
        """Who has it, be it this holder or another."""

    def close(self) -> None: ...


def store_of(holder: Holder) -> Store:
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
def _scripts(alias: str) -> tuple[Any, ...]:
    """The scripts, on a pool of our own to the cache's server.

    The project's pool has the patience of a cache, and its ``IGNORE_EXCEPTIONS`` makes "no answer" look like an answer.
    """
    from django_redis.pool import get_connection_factory
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    configured: dict[str, Any] = settings.CACHES[alias]
    options: dict[str, Any] = {**configured.get("OPTIONS", {})}
    options["CONNECTION_POOL_KWARGS"] = {
        **options.get("CONNECTION_POOL_KWARGS", {}),
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
        # The project's retries would multiply them. A connection that a restart closed is replaced anyway.
        "retry": Retry(NoBackoff(), 0),
    }
    factory: Any = get_connection_factory(options)
    servers = configured["LOCATION"]
    # The first one is the primary.
    url = servers.split(",")[0] if isinstance(servers, str) else next(iter(servers))
    client = Redis(connection_pool=factory.get_connection_pool(factory.make_connection_params(url)))
    return tuple(client.register_script(text) for text in (_ACQUIRE, _RENEW, _RELEASE, _LOOK))


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        _is_redis.cache_clear()
        _scripts.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobs.lockstores")

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


_LOOK = """
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}
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

    def look(self) -> Held | None:
        value, left = self._run(3, self._keys[:1])
        if value is None:
            return None
        job = bytes(value).decode().partition("/")[0]
        return Held(uuid.UUID(job) if job else None, left / 1000)

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
        with self._away():
            return not is_running(self._side, row.job, row.lease)

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
                try:
                    cursor.execute(
                        "UPDATE jobs_lock SET job = %s, lease = %s, token = %s, fence = %s, expires_at = %s "
                        f"WHERE {self._key} = %s AND token = %s AND expires_at = %s",
                        [*values, row.token.hex, row.expires_at],
                    )
                except OperationalError as exc:
                    # A server whose transactions are REPEATABLE READ by default says it this way.
                    if is_conflict(exc):
                        return False
                    raise
            return bool(cursor.rowcount == 1)

    def renew(self) -> bool:
        return self._set(f"expires_at = {self._side.now} + %s", self._holder.ttl)

    def look(self) -> Held | None:
        now, row = self._read()
        if row is None:
            return None
        if row.job is None:
            return Held(None, row.expires_at - now) if row.expires_at > now else None
        with self._away():
            return Held(row.job, None) if is_running(self._side, row.job, row.lease) else None

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
        with self._away(), self._side.cursor() as cursor:
            yield cursor

    @contextmanager
    def _away(self) -> Iterator[None]:
        try:
            yield
        except (Error, ImproperlyConfigured) as exc:
            raise Away(str(exc)) from exc


def _uuid(value: Any) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))


def token_of_time() -> int:
    """The token of a holder that has no store. Not this machine's time: one that is ahead would fence the next ones."""
    try:
        with side() as database, database.cursor() as cursor:
            cursor.execute(f"SELECT {database.now}")
            return int(float(cursor.fetchone()[0]) * 1_000_000)
    except (Error, ImproperlyConfigured):
        return time.time_ns() // 1000


def is_running(database: SideDatabase, job: uuid.UUID, lease: int) -> bool:
    """Whether the run that took a lock still lasts.

    Not by the connection of a body, where there is another one: its snapshot may be older than that run.
    """
    others = list(conf().DATABASES)
    if database.vendor != "sqlite":
        others.remove(home())
        with database.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM jobs_job WHERE id = %s AND state = %s AND lease = %s",
                [job if database.vendor == "postgresql" else job.hex, State.RUNNING.value, lease],
            )
            if cursor.fetchone():
                return True
    return any(Job.objects.using(alias).filter(pk=job, state=State.RUNNING, lease=lease).exists() for alias in others)


@dataclass(frozen=True, slots=True)
class Held:
    """Who has a lock, as far as its store says."""

    #: None: somebody who is no job.
    job: uuid.UUID | None
    #: Seconds until it is free if it is not renewed; None if it lasts as long as the run of its job.
    left: float | None


def look(key: str) -> Held | None:
    """Who has the lock; None: nobody.

    Raises:
        Away: the store does not say.
    """
    nobody = Holder(key, 0.0, uuid.UUID(int=0), None, 0)
    store = store_of(nobody)
    try:
        return store.look()
    finally:
        store.close()


def prune(database: SideDatabase) -> None:
    """Forget the locks that nobody has held for :data:`REMEMBERED` seconds. Race: one is taken at this moment."""
    with database.cursor() as cursor:
        cursor.execute(
            f"SELECT token, job, lease FROM jobs_lock WHERE expires_at < {database.now} - %s LIMIT %s",
            [REMEMBERED, conf().BATCH],
        )
        old = [(_uuid(token), job, lease) for token, job, lease in cursor.fetchall()]
    for token, job, lease in old:
        if job is None or not is_running(database, _uuid(job), lease):
            with database.cursor() as cursor:
                cursor.execute("DELETE FROM jobs_lock WHERE token = %s", [token.hex])
