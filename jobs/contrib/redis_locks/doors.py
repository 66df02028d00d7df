"""The part of the locks in Redis in the core."""

from jobs.doors import Extension


class RedisLocks(Extension):
    instead = {"jobs.contrib.locks.locks.Store": "jobs.contrib.redis_locks.store.store_of"}
