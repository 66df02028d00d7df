"""It has no part in the core: task bodies call them."""

from jobs.doors import Extension


class Guards(Extension):
    pass
