"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: The dotted path of ``redact(task, name, value)``, which returns what people may see of an argument: in the admin,
    #: by the commands, on pages of progress, in Celery's events and by ``celery inspect``. It also gets ``"result"``,
    #: ``"cursor"``, the ``"answer"`` of an external call, the ``"payload"`` of a signal, and the texts of an
    #: ``"error"``, a ``"key"``, a ``"progress"`` and a line of a ``"log"``; the values of arguments that it changed are
    #: blanked in them before. What else a body writes into them is its author's choice. Stored data is not changed,
    #: and logs are not either: they have the exceptions as they were raised, and their own filters. A positional
    #: argument whose name is not known here is named by its number: ``"0"``. None: everything is shown.
    REDACT: str | None = None


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "REDACT": (".*", "the dotted path of a function, or None, not {!r}"),
}
