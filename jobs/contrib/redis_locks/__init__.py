"""Locks in Redis, if the project's cache is one: ``JOBS["LOCK_CACHE"]``."""

PART_OF = ("jobs.contrib.locks",)
