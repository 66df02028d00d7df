"""``manage.py jobs``, with its subcommands in the order of the help."""

from jobs.management.console import change, look, maintain, schedules
from jobs.management.console.base import JobsCommand, Subcommand


class Command(JobsCommand):
    names = [*vars(look).values(), *vars(schedules).values(), *vars(change).values(), *vars(maintain).values()]
    subcommands = {each.name: each for each in names if isinstance(each, Subcommand)}
