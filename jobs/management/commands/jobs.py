"""``manage.py jobs``: an extension has the command, and its subcommands."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobs import extensions


class NoCommand(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        raise CommandError("There are no subcommands: the extension that has them is not installed.")


Command = extensions.instead(NoCommand)
