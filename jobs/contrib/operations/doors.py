"""The part of the operations in the core: there is none. Pages, commands and other extensions use them."""

from jobs.doors import Extension


class Operations(Extension):
    pass
