"""``manage.py jobs``, with its subcommands in the order of the help."""

from jobs.commands import adopt, change, examine, look, maintain
from jobs.commands.base import JobsCommand, Subcommand


class Command(JobsCommand):
    subcommands = {
        each.name: each
        for family in (look, change, maintain, examine, adopt)
        for each in vars(family).values()
        if isinstance(each, Subcommand)
    }
