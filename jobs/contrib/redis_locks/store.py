"""A lock as a key in Redis: it is held for its TTL, and renewed as long as the block runs."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.signals import setting_changed
from django.dispatch import receiver

from jobs.conf import conf
from jobs.contrib.locks.locks import Held, Store, StoreAway
from jobs.models import Job


def store_of(key: str, ttl: float = 0.0, job: Job | None = None) -> Store:
    """The store in the cache's Redis; the store in the database if the cache is of another kind, or missing."""
    alias = conf().LOCK_CACHE
    backend = caches[alias] if alias in settings.CACHES else None
    # Compare names: django-redis need not be installed.
    is_redis = "django_redis.cache.RedisCache" in (f"{a.__module__}.{a.__name__}" for a in type(backend).mro())
    return RedisStore(key, ttl, job) if is_redis else Store(key, ttl, job)


@cache
def _client(alias: str) -> Any:
    """A client with its own pool: with the cache's ``IGNORE_EXCEPTIONS``, "no answer" would look like an answer."""
    from django_redis.pool import get_connection_factory
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    configured: dict[str, Any] = settings.CACHES[alias]
    options = dict(configured.get("OPTIONS", {}))
    options["CONNECTION_POOL_KWARGS"] = {
        **options.get("CONNECTION_POOL_KWARGS", {}),
        "decode_responses": True,
        # The project's cache may wait long; a job must not hang because of a lock that only saves work.
        "socket_connect_timeout": 0.5,
        "socket_timeout": 1.0,
        # The project's retries would multiply these seconds. Connections that a restart closed are replaced anyway.
        "retry": Retry(NoBackoff(), 0),
    }
    factory: Any = get_connection_factory(options)
    servers = configured["LOCATION"]
    # The first server is the primary.
    url = servers.split(",")[0] if isinstance(servers, str) else servers[0]
    return Redis(connection_pool=factory.get_connection_pool(factory.make_connection_params(url)))


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "CACHES":
        _client.cache_clear()


#: KEYS: the lock, the last fencing token. ARGV: holder, milliseconds, job, lease. The token is the server's time, or
#: one more than the last: so it grows even if Redis lost its data, or if its clock was put back.
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


class RedisStore(Store):
    name = "Redis"

    def __init__(self, key: str, ttl: float = 0.0, job: Job | None = None) -> None:
        super().__init__(key, ttl, job)
        self.expires = True

    def acquire(self) -> int:
        token, job = self._run(_ACQUIRE, int(self.ttl * 1000), str(self.job or ""), self.lease)
        if not token:
            raise self.held_by(job)
        return int(token)

    def keep(self, seconds: float) -> bool:
        return bool(self._run(_KEEP, int(seconds * 1000)))

    def look(self) -> Held | None:
        holder, left = self._run("return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}")
        if holder is None:
            return None
        job = holder.partition("/")[0]
        return Held(uuid.UUID(job) if job else None, left / 1000)

    def _run(self, script: str, *args: str | int) -> Any:
        from redis import RedisError

        alias = str(conf().LOCK_CACHE)
        # With the cache's key prefix, because several projects may share a Redis.
        keys = [caches[alias].make_key(name) for name in (f"jobs:lock:{self.key}", "jobs:fence")]
        holder = f"{self.job or ''}/{self.lease}/{self.token}"
        try:
            return _client(alias).register_script(script)(keys=keys, args=[holder, *args])
        except (RedisError, OSError) as exc:
            raise StoreAway(str(exc)) from exc
