"""Locks in Redis, if the project's cache is one: ``JOBS["LOCK_CACHE"]``."""
