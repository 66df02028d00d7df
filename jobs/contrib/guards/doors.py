"""The part of the guards in the core: there is none. Task bodies call them."""

from jobs.doors import Extension


class Guards(Extension):
    pass
