"""It has no part in the core: pages, commands and other extensions use them."""

from jobs.doors import Extension


class Operations(Extension):
    pass
