"""Where locks are kept: in Redis through django-redis, or in rows of the database where there is no Redis."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, NamedTuple

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import Error, IntegrityError, OperationalError, connections
from django.dispatch import receiver

from jobs.conf import conf
from jobs.databases import SideDatabase, home, is_conflict, side
from jobs.errors import Busy
from jobs.models import Job, State

#: Seconds that Redis has for an answer. The project's cache may be patient; a job must not hang on what saves work.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 0.5, 1.0

#: Seconds for which the database remembers the last fencing token of a lock that nobody holds.
REMEMBERED = 86400.0


class Away(Exception):
    """The store does not answer, or not with anything that could be relied on."""


class Held(NamedTuple):
    """Who has a lock, as far as its store says."""

    #: None: somebody who is no job.
    job: uuid.UUID | None
    #: Seconds until it is free if it is not renewed; None if it lasts as long as the run of its job.
    left: float | None


class Store(ABC):
    """Where one block keeps its lock. Everything may raise :class:`Away`.

    Parameters:
        ttl: seconds for which it is held; the block renews it if it ``expires``.
        job: the one that runs the block. Its next run takes the lock over.
    """

    expires = True

    def __init__(self, key: str, ttl: float = 0.0, job: Job | None = None) -> None:
        self.key, self.ttl, self.token = key, ttl, uuid.uuid4().hex
        self.job: uuid.UUID | None = job.pk if job else None
        self.lease = job.lease if job else 0

    @abstractmethod
    def acquire(self) -> int:
        """Take the lock and return the fencing token; raises ``Busy``."""

    @abstractmethod
    def keep(self, seconds: float) -> bool:
        """Hold it for so long from now on; 0 gives it back. False: another one has it."""

    @abstractmethod
    def look(self) -> Held | None:
        """Who has it, be it this block or another."""

    def close(self) -> None:
        return

    def busy(self, job: object) -> Busy:
        return Busy(f"the lock {self.key!r} is held by " + (f"the job {job}" if job else "somebody who is no job"))


def store_of(key: str, ttl: float = 0.0, job: Job | None = None) -> Store:
    alias = conf().LOCK_CACHE
    try:
        from django_redis.cache import RedisCache
    except ImportError:
        return DatabaseStore(key, ttl, job)
    is_redis = alias is not None and alias in settings.CACHES and isinstance(caches[alias], RedisCache)
    return RedisStore(key, ttl, job) if is_redis else DatabaseStore(key, ttl, job)


# Redis


@cache
def _client(alias: str) -> Any:
    """A client with a pool of our own to the cache's server.

    The project's pool has the patience of a cache, and its ``IGNORE_EXCEPTIONS`` makes "no answer" look like an answer.
    """
    from django_redis.pool import get_connection_factory
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    configured: dict[str, Any] = settings.CACHES[alias]
    options = dict(configured.get("OPTIONS", {}))
    options["CONNECTION_POOL_KWARGS"] = {
        **options.get("CONNECTION_POOL_KWARGS", {}),
        "decode_responses": True,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
        # The project's retries would multiply them. A connection that a restart closed is replaced anyway.
        "retry": Retry(NoBackoff(), 0),
    }
    factory: Any = get_connection_factory(options)
    servers = configured["LOCATION"]
    # The first one is the primary.
    url = servers.split(",")[0] if isinstance(servers, str) else next(iter(servers))
    return Redis(connection_pool=factory.get_connection_pool(factory.make_connection_params(url)))


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        _client.cache_clear()


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
_KEEP = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  return 0
elseif ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
"""

_LOOK = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}"


class RedisStore(Store):
    def acquire(self) -> int:
        token, job = self._run(_ACQUIRE, int(self.ttl * 1000), str(self.job or ""), self.lease)
        if not token:
            raise self.busy(job)
        return int(token)

    def keep(self, seconds: float) -> bool:
        return bool(self._run(_KEEP, int(seconds * 1000)))

    def look(self) -> Held | None:
        holder, left = self._run(_LOOK)
        if holder is None:
            return None
        job = holder.partition("/")[0]
        return Held(uuid.UUID(job) if job else None, left / 1000)

    def _run(self, script: str, *args: str | int) -> Any:
        from redis import RedisError

        alias = str(conf().LOCK_CACHE)
        # With the prefix of the project's cache: several projects may share a Redis.
        keys = [caches[alias].make_key(name) for name in (f"jobs:lock:{self.key}", "jobs:fence")]
        holder = f"{self.job or ''}/{self.lease}/{self.token}"
        try:
            return _client(alias).register_script(script)(keys=keys, args=[holder, *args])
        except (RedisError, OSError) as exc:
            raise Away(str(exc)) from exc


# The database


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except (Error, ImproperlyConfigured) as exc:
        raise Away(str(exc)) from exc


class DatabaseStore(Store):
    """A row, written over a connection of its own: seen by everybody at once, and part of nobody's transaction.

    The connection lasts as long as the lock: one that stayed open would keep test databases from being dropped.
    """

    def __init__(self, key: str, ttl: float = 0.0, job: Job | None = None) -> None:
        super().__init__(key, ttl, job)
        self.expires = job is None
        self._side = SideDatabase()

    @_reachable()
    def acquire(self) -> int:
        held, now, token, fence, expires_at = self._read()
        if held is not None:
            raise self.busy(held.job)
        fence = max(fence + 1, int(now * 1_000_000))
        until = now + self.ttl if self.expires else now
        values = [self.job and self.job.hex, self.lease, self.token, fence, until, self.key]
        # Race: several saw that it is free. One finds the row as it was read, or inserts it.
        try:
            with self._side.cursor() as cursor:
                if token is None:
                    names = f"job, lease, token, fence, expires_at, {connections[home()].ops.quote_name('key')}"
                    cursor.execute(f"INSERT INTO jobs_lock ({names}) VALUES (%s, %s, %s, %s, %s, %s)", values)
                else:
                    cursor.execute(
                        "UPDATE jobs_lock SET job = %s, lease = %s, token = %s, fence = %s, expires_at = %s "
                        "WHERE jobs_lock.key = %s AND token = %s AND expires_at = %s",
                        [*values, token, expires_at],
                    )
                if cursor.rowcount == 1:
                    return fence
        except (IntegrityError, OperationalError) as exc:
            # A server whose transactions are REPEATABLE READ by default says it the second way.
            if not isinstance(exc, IntegrityError) and not is_conflict(exc):
                raise
        raise Busy(f"somebody else was faster at the lock {self.key!r}")

    @_reachable()
    def keep(self, seconds: float) -> bool:
        """For a block that is no job's, and to give it back: the row stays for a while, and with it the last fence."""
        with self._side.cursor() as cursor:
            cursor.execute(
                f"UPDATE jobs_lock SET job = NULL, expires_at = {self._side.now} + %s "
                "WHERE jobs_lock.key = %s AND token = %s",
                [seconds, self.key, self.token],
            )
            return bool(cursor.rowcount == 1)

    @_reachable()
    def look(self) -> Held | None:
        return self._read()[0]

    def close(self) -> None:
        self._side.close()

    def _read(self) -> tuple[Held | None, float, Any, int, float]:
        """Who has it, the time, and the row: its token (None if there is no row), its fence and its end."""
        with self._side.cursor() as cursor:
            cursor.execute(
                f"SELECT {self._side.now}, job, lease, token, COALESCE(fence, 0), COALESCE(expires_at, 0) "
                "FROM (SELECT 1) AS one LEFT JOIN jobs_lock ON jobs_lock.key = %s",
                [self.key],
            )
            now, job, lease, token, fence, expires_at = cursor.fetchone()
        now = float(now)
        if job is None:
            held = Held(None, expires_at - now) if expires_at > now else None
        else:
            job = uuid.UUID(str(job))
            # The next run of a job takes over from the one that died, and never the other way round.
            is_earlier = job == self.job and lease < self.lease
            held = None if is_earlier or not is_running(self._side, job, lease) else Held(job, None)
        return held, now, token, fence, expires_at


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
                [job.hex, State.RUNNING.value, lease],
            )
            if cursor.fetchone():
                return True
    return any(Job.objects.using(alias).filter(pk=job, state=State.RUNNING, lease=lease).exists() for alias in others)


def token_of_time() -> int:
    """The token of a holder that has no store. Not this machine's time: one that is ahead would fence the next ones."""
    try:
        with side() as database, database.cursor() as cursor:
            cursor.execute(f"SELECT {database.now}")
            return int(float(cursor.fetchone()[0]) * 1_000_000)
    except (Error, ImproperlyConfigured):
        return time.time_ns() // 1000


def look(key: str) -> Held | None:
    """Who has the lock; None: nobody. Raises :class:`Away` if the store does not say."""
    with closing(store_of(key)) as store:
        return store.look()


def prune(database: SideDatabase) -> None:
    """Forget the locks that nobody has held for :data:`REMEMBERED` seconds. Race: one is taken at this moment."""
    with database.cursor() as cursor:
        cursor.execute(
            f"SELECT token, job, lease FROM jobs_lock WHERE expires_at < {database.now} - %s LIMIT %s",
            [REMEMBERED, conf().BATCH],
        )
        old = cursor.fetchall()
    for token, job, lease in old:
        if job is None or not is_running(database, uuid.UUID(str(job)), lease):
            with database.cursor() as cursor:
                cursor.execute("DELETE FROM jobs_lock WHERE token = %s", [token])
