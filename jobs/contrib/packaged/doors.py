"""The part of packaged apps in the core: there is none, as it comes before all doors (``early.py``)."""

from __future__ import annotations

from jobs.doors import Extension


class Packaged(Extension):
    pass
