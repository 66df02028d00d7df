"""``manage.py jobs``, with its subcommands in the order of the help."""

from itertools import chain

from jobs import extensions
from jobs.contrib.console import change, look, maintain
from jobs.contrib.console.base import JobsCommand, Subcommand


class Command(JobsCommand):
    modules = (look, change, maintain, *extensions.modules("commands"))
    found = chain(change.OF_JOBS, *(vars(module).values() for module in modules))
    subcommands = {each.name: each for each in found if isinstance(each, Subcommand)}
