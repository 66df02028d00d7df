"""The part of the encryption in the core.

Extensions are called in the order of their names. This one comes after those that make keys and tags of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jobs.doors import Extension


class Vault(Extension):
    def ready(self) -> None:
        # This import registers tokens with the decoder.
        from jobs.contrib.vault import tokens  # noqa: F401

    def called(self, task: Any) -> Callable[[Any, Any], None] | None:
        from jobs.conf import conf, problems

        if problems() or not conf().ENCRYPT:
            return None
        from jobs.contrib.vault.seal import seal

        return seal

    def waits(self, view: Any) -> Iterator[Any]:
        from jobs.contrib.vault.waiting import waits

        return waits(view)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.vault import admin

        return admin.job_page(request, about) if page == "job" else {}
