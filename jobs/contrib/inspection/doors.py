"""The part of the inspection in the core: there is none. Pages, commands and other extensions use it."""

from jobs.doors import Extension


class Inspection(Extension):
    pass
