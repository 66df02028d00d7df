"""What the subcommands of ``manage.py jobs`` have in common."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.management.base import BaseCommand

Option = tuple[str, dict[str, Any]]


def option(flag: str, **settings: Any) -> Option:
    """What ``argparse`` is told of one argument."""
    return flag, settings


AS_JSON = option("--json", action="store_true", dest="as_json", help="print JSON, and nothing else, to stdout")
ONCE = option("--once", action="store_true", help="do it once, report and end")
DRY_RUN = option("--dry-run", action="store_true", help="say what would be done, and change nothing")


class Subcommand:
    """One subcommand: what its help says, and :meth:`run`."""

    name: ClassVar[str]
    #: One line, without a capital and a full stop.
    summary: ClassVar[str]
    #: What else the help says.
    more: ClassVar[str] = ""
    options: ClassVar[Sequence[Option]] = ()
    #: Without "manage.py jobs".
    examples: ClassVar[Sequence[str]]

    def __init__(self, command: BaseCommand) -> None:
        self.stdout = command.stdout
        self.stderr = command.stderr
        self.style = command.style

    def run(self, *args: Any, **options: Any) -> None:
        """Do it; the options are what :attr:`options` declares, and Django's own.

        Raises:
            CommandError: it was not done; its text goes to stderr, and ``returncode`` is the exit status.
        """
        raise NotImplementedError

    @property
    def is_terminal(self) -> bool:
        """Whether people read it, and have not asked for ``--no-color``."""
        return bool(self.stdout.isatty()) and self.style.SUCCESS("x") != "x"

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def say_json(self, value: Any) -> None:
        self.say(json.dumps(value, ensure_ascii=False))


def me() -> str:
    """Who calls, for the history of what is done; empty if the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
