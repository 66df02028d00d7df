"""It has no part of its own in the core: other extensions call ``waking.py``."""

from jobs.doors import Extension


class Waking(Extension):
    pass
