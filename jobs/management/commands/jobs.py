"""``manage.py jobs``: hands over to the subcommands of ``jobs.commands``."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from contextlib import nullcontext
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter, SystemCheckError
from django.db import OperationalError, ProgrammingError
from django.utils import translation
from django.utils.text import capfirst

from jobs import databases
from jobs.commands import SUBCOMMANDS


class Help(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of options, and examples that keep their lines."""


class Command(BaseCommand):
    help = "Look at the jobs, retry and cancel them, and run maintenance apart from the workers."
    requires_system_checks = ["jobs"]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        epilog = "examples:\n  manage.py jobs status\n  manage.py jobs retry 6f1c2a34-...\n  manage.py jobs why --help"
        return super().create_parser(prog_name, subcommand, **{"formatter_class": Help, "epilog": epilog, **kwargs})

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)
        for subcommand in SUBCOMMANDS:
            sub = subparsers.add_parser(
                subcommand.name,
                help=subcommand.summary,
                description=f"{capfirst(subcommand.summary)}.\n\n{subcommand.more}",
                epilog="examples:\n" + "\n".join(f"  manage.py jobs {example}" for example in subcommand.examples),
                formatter_class=Help,
            )
            for flag, settings in subcommand.options:
                sub.add_argument(flag, **settings)
            _add_common_options(sub)

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except SystemCheckError as exc:
            # 1 is a subcommand's own answer (verify: the promise is broken), and none was run.
            exc.returncode = 2
            raise

    def handle(self, *args: Any, subcommand: str, **options: Any) -> None:
        chosen = next(each for each in SUBCOMMANDS if each.name == subcommand)
        # What programs read is the same in every language.
        with translation.override(None) if options.get("as_json") else nullcontext():
            try:
                chosen(self).run(**options)
            except (OperationalError, ProgrammingError) as exc:
                raise CommandError(f"The database says: {databases.describe(exc)}") from exc


def _add_common_options(parser: ArgumentParser) -> None:
    """Django's own options also behind the subcommand, where people write them."""
    for flag in ("--settings", "--pythonpath"):
        parser.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
    for flag in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(flag, action="store_true", default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS, help=SUPPRESS)
