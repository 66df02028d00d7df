"""``manage.py jobs``, with its subcommands in the order of the help."""

from jobs.management.console import audit, change, init, look, maintain
from jobs.management.console.base import JobsCommand, Subcommand


class Command(JobsCommand):
    names = [each for module in (look, change, maintain, init, audit) for each in vars(module).values()]
    subcommands = {each.name: each for each in names if isinstance(each, Subcommand)}
