"""The part of packaged apps in the core: there is none, because ``early.py`` runs before all doors."""

from __future__ import annotations

from jobs.doors import Extension


class Packaged(Extension):
    pass
