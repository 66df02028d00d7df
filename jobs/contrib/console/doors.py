"""The part of the console in the core: ``manage.py jobs`` itself."""

from jobs.doors import Extension


class Console(Extension):
    instead = {"jobs.management.commands.jobs.NoCommand": "jobs.contrib.console.command.Command"}
