"""The base of ``manage.py jobs``: how subcommands are declared, found and run, and how they write output."""

from __future__ import annotations

import datetime
import errno
import getpass
import inspect
import json
import os
import re
import shutil
import signal
import sys
from argparse import SUPPRESS, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from textwrap import fill
from typing import Any, ClassVar, NamedTuple

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
    SystemCheckError,
)
from django.db import DataError, InterfaceError, InternalError, OperationalError, ProgrammingError
from django.utils import translation

from jobs import extensions
from jobs.conf import celery_app, import_tasks
from jobs.conf.logs import CONTROLS, visible
from jobs.contrib.checks.system import OF_DJANGO
from jobs.contrib.console.tables import fit, table
from jobs.contrib.inspection import times
from jobs.store import databases

Option = tuple[str, dict[str, Any]]


def option(flag: str, help: str, **settings: Any) -> Option:
    """Parameters: as of ``add_argument()``, and ``also``, the flag's other name."""
    return flag, {"help": help, **settings}


DRY_RUN = option("--dry-run", "say what would be done, and change nothing", action="store_true")
REASON = option("--reason", "why, for those who ask", default="", also="--why")
ID = option("id", "the id of a job (a UUID), or its last 8 digits, as lists show it", metavar="ID")
LIMIT = option("--limit", "how many at the most (default: %(default)s)", type=int, default=20)
MOST = 2**31 - 2  #: The most that any database takes as a limit, and one more.
#: An option of every subcommand.
AS_JSON = option("--json", "print JSON, and nothing else, to stdout", action="store_true", dest="as_json")


#: What people want to do with a subcommand: the help has this order.
LOOK, MEND, STEER, PROVE, KEEP = WISHES = (
    "See what there is, and why", "Put jobs right", "Steer queues and workers", "Try and prove", "Set up and keep",
)  # fmt: skip


class Subcommand(NamedTuple):
    name: str
    #: Its help: a summary in the first line, and examples at the end.
    text: str
    options: Sequence[Option]
    #: Takes the command, for output, and the options. Raises ``CommandError`` if something was not done: its text
    #: goes to stderr, and its ``returncode`` is the exit status.
    run: Callable[[JobsCommand, Namespace], None]
    #: Whether it runs only if the system checks find no error.
    is_checked: bool = True
    wish: str = KEEP

    @property
    def summary(self) -> str:
        text = self.text.partition("examples:\n")[0].partition(".\n")[0]
        return text[:1].lower() + text[1:]


def subcommand(
    *options: Option, wish: str = KEEP, is_checked: bool = True
) -> Callable[[Callable[[JobsCommand, Namespace], None]], Subcommand]:
    """Make a function a subcommand with its name, and with its docstring as the help."""
    return lambda run: Subcommand(run.__name__.rstrip("_"), inspect.getdoc(run) or "", options, run, is_checked, wish)


class Help(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Options in Django's order, and examples with their own line breaks."""


class JobsCommand(BaseCommand):
    help = "Look at the jobs, retry and cancel them, and run maintenance apart from the workers."
    requires_system_checks = ["jobs"]
    #: By name, in the order of the help.
    subcommands: ClassVar[dict[str, Subcommand]]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = Help
        parser.epilog = "examples:\n  manage.py jobs list\n  manage.py jobs retry ID\n  manage.py jobs why --help"
        every = [each for wish in WISHES for each in self.subcommands.values() if each.wish == wish]
        listed: dict[str, str] = {}
        for each in every:
            line = fill(each.summary, 79, initial_indent=f"  {each.name:<11} ", subsequent_indent=" " * 14)
            listed[each.wish] = f"{listed.get(each.wish, each.wish + ':')}\n{line}"
        parser.description = "\n\n".join([self.help, *listed.values()])
        says = "one of those above; its own --help has its options, and examples"
        subparsers = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True, help=says)
        for each in every:
            description, head, examples = each.text.partition("examples:\n")
            texts: dict[str, Any] = {"description": description, "epilog": head + examples}
            sub = subparsers.add_parser(each.name, formatter_class=Help, **texts)
            for flag, settings in (*each.options, AS_JSON):
                given = dict(settings)
                flags = [flag, given.pop("also")] if "also" in given else [flag]
                sub.add_argument(*flags, **given)
            # People also write Django's own options behind the subcommand.
            for flag in ("--settings", "--pythonpath"):
                sub.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
            for flag in ("--traceback", "--no-color", "--force-color"):
                sub.add_argument(flag, action="store_true", default=SUPPRESS, help=SUPPRESS)
            sub.add_argument("-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS, help=SUPPRESS)
            if not each.is_checked:
                sub.set_defaults(skip_checks=True)

    def execute(self, *args: Any, **options: Any) -> Any:
        if self.subcommands[options["subcommand"]].wish == LOOK:
            # Importing all tasks and the broker's client takes longer than most of these subcommands.
            self.requires_system_checks = [OF_DJANGO]
        return super().execute(*args, **options)

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as exc:
            # 1 would be a subcommand's answer (verify: the promise is broken), but no subcommand has run.
            exc.returncode = 2
            raise

    def handle(self, *args: Any, **options: Any) -> None:
        self.as_json = options["as_json"]
        if options.get("limit"):
            options["limit"] = min(options["limit"], MOST)
        if sys.stdout is None and not options.get("stdout"):
            # Nobody reads (``>&-``): what was asked for is done all the same, and its exit status says how it went.
            self.stdout = OutputWrapper(open(os.devnull, "w"))  # noqa: SIM115
        if sys.stderr is None and not options.get("stderr"):
            self.stderr = OutputWrapper(open(os.devnull, "w"))  # noqa: SIM115
        if hasattr(sys.stdout, "reconfigure"):
            # A name that the terminal cannot show must not end a command in the middle of its work.
            sys.stdout.reconfigure(errors="backslashreplace")
        # JSON is the same in every language.
        with translation.override(None) if self.as_json else nullcontext():
            try:
                self.subcommands[options["subcommand"]].run(self, Namespace(**options))
            except KeyboardInterrupt:
                # Each change is committed by itself: what was done is done, and the rest was not begun.
                self.warn("interrupted", self.style.WARNING)
                sys.exit(128 + signal.SIGINT)
            except OSError as exc:
                if exc.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT):
                    raise
                # Python would complain that the rest cannot be written.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                if exc.errno == errno.EPIPE:
                    # The reader, such as head, has read enough.
                    sys.exit(128 + signal.SIGPIPE)
                raise CommandError(f"The output cannot be written: {exc.strerror}", returncode=2) from exc
            except (DataError, UnicodeEncodeError) as exc:
                # A NUL, or a byte of the command line that is no text.
                raise CommandError(visible(f"No database can look for that: {exc}")) from exc
            except CommandError as exc:
                raise CommandError(visible(str(exc)), returncode=exc.returncode) from exc.__cause__
            except (InterfaceError, InternalError, OperationalError, ProgrammingError) as exc:
                says = f"The database says: {databases.describe(exc)}"
                if "database is locked" in says:
                    says += ". A body that runs holds SQLite's write lock: manage.py jobs list --state running"
                raise CommandError(says) from exc

    def say(self, line: str, keep: str = "") -> None:
        """Write a line for people: nothing with ``--json``. Control characters in names and errors are escaped.

        Parameters:
            keep: ``"\\n"`` if the text has several lines.
        """
        if not self.as_json:
            ours = {style("\0").partition("\0")[0] for style in vars(self.style).values()} | {"\x1b[0m"}
            parts = re.split(f"({'|'.join(map(re.escape, ours - {''}))})", line)
            self.stdout.write("".join(part if part in ours else visible(part, keep) for part in parts))
            self.stdout.flush()

    def warn(self, line: str, style: Any) -> None:
        """Write a line to stderr."""
        self.stderr.write(visible(line), style)

    @property
    def width(self) -> int:
        """How many characters a line may have; in a pipe any number."""
        return shutil.get_terminal_size().columns if self.stdout.isatty() else sys.maxsize

    @property
    def height(self) -> int:
        return shutil.get_terminal_size().lines

    def drawn(self, head: Sequence[str], rows: Sequence[Sequence[Any]], fits: bool = False) -> str:
        """Rows as a table. ``fits``: cut what is too wide for the terminal; else it continues in the next line."""
        # An extension draws the table only on a terminal, and not with --no-color.
        is_coloured = self.stdout.isatty() and self.style.SUCCESS("x") != "x"
        every = fit([head, *rows], self.width) if fits else [head, *rows]
        return (extensions.instead(table) if is_coloured else table)(every)

    def say_table(
        self, head: Sequence[str], rows: Sequence[Sequence[Any]], nothing: str = "", fits: bool = False
    ) -> None:
        """Write rows as a table for people, or ``nothing`` if there are none."""
        # The table has escaped its cells already, and has its own colours.
        if not self.as_json:
            self.stdout.write(self.drawn(head, rows, fits) if rows else nothing)
            self.stdout.flush()

    def say_json(self, value: Any) -> None:
        """Write a value for programs: only with ``--json``."""
        if self.as_json:
            # Moments and ids become texts.
            text = json.dumps(value, default=lambda odd: getattr(odd, "isoformat", odd.__str__)())
            self.stdout.write(CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
            self.stdout.flush()


@contextmanager
def reported(*kinds: type[Exception], says: str = "{}", code: int = 1) -> Iterator[None]:
    """Make the command fail with the text of such an exception (default: ``ValueError``), without a traceback."""
    kinds = kinds or (ValueError,)
    try:
        yield
    except UnicodeError:
        # No text that a database takes: the command says so for all its options.
        raise
    except kinds as exc:
        raise CommandError(says.format(exc), returncode=code) from exc


def project_app() -> Any:
    """The project's Celery app with its tasks. (Celery's fallback app has no tasks and no limits.)"""
    app = celery_app()
    if app is None:
        raise CommandError(
            "The project has no Celery app, or does not load it: import it in the __init__.py of the package that "
            "holds the settings (from proj.celery import app). manage.py jobs init shows how."
        )
    import_tasks(app)
    return app


def me() -> str:
    """The name of the system's user, for the history of jobs; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def local(at: datetime.datetime | None) -> str:
    """A moment in the settings' time zone, to the second."""
    return "-" if at is None else f"{times.local(at):%Y-%m-%d %H:%M:%S}"
