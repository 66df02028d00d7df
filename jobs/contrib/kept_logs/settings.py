"""What it reads of ``settings.JOBS``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLevelNamesMapping


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: The lines that bodies log are kept beside their jobs from a level on, by the name of a task or a pattern:
    #: ``{"*": "INFO", "shop.imports.*": "DEBUG"}``; a later pattern wins. It needs an app of its own: see "Keep what
    #: jobs log".
    KEEP_LOGS: Mapping[str, str] = field(default_factory=dict)


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "KEEP_LOGS": (
        lambda value: isinstance(value, Mapping) and all(each in [*getLevelNamesMapping()] for each in value.values()),
        "a dict of levels, {{'*': 'INFO', 'shop.*': 'DEBUG'}}, not {!r}",
    ),
}
