"""It only calls: the core has no part of it."""

from jobs.doors import Extension


class Changes(Extension):
    pass
