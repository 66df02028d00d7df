"""It only asks and deletes: the core has no part of it."""

from jobs.doors import Extension


class Forgetting(Extension):
    pass
