"""It has no part in the core: pages, commands and other extensions use it."""

from jobs.doors import Extension


class Inspection(Extension):
    pass
