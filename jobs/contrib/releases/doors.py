"""The part of the releases in the core: there is none beside its checks."""

from jobs.doors import Extension


class Releases(Extension):
    pass
