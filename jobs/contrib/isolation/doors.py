"""The part of the isolation in the core: it watches a process from its start."""

from __future__ import annotations

from jobs.conf import conf, problems
from jobs.doors import Extension


class Isolation(Extension):
    def ready(self) -> None:
        if not problems() and conf().ISOLATION:
            from jobs.contrib.isolation.isolation import install

            install()
