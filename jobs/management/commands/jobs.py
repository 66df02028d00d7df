"""``manage.py jobs``, with its subcommands in the order of the help."""

from jobs import extensions
from jobs.management.console import change, look, maintain
from jobs.management.console.base import JobsCommand, Subcommand


class Command(JobsCommand):
    modules = (look, *extensions.modules("commands"), change, maintain)
    names = [each for module in modules for each in vars(module).values()]
    subcommands = {each.name: each for each in names if isinstance(each, Subcommand)}
