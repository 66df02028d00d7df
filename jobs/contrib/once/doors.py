"""It has no part in the core: task bodies and other code call it."""

from jobs.doors import Extension


class Once(Extension):
    pass
