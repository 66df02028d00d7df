"""``manage.py jobs batches``: how far they are."""

from argparse import Namespace
from operator import attrgetter

from django.core.management.base import CommandError

from jobs.conf import conf
from jobs.contrib.batches.batch import counts
from jobs.contrib.batches.models import Batch
from jobs.contrib.console.base import LIMIT, LOOK, JobsCommand, local, subcommand
from jobs.models import State


@subcommand(LIMIT, wish=LOOK)
def batches(out: JobsCommand, args: Namespace) -> None:
    """The batches, the newest first: how many of their jobs have ended, and how.

    What is to be done to all jobs of one: manage.py jobs retry --batch ID, or cancel, or kill.

    examples:
      manage.py jobs batches
      manage.py jobs list --batch 019aae3c-52c8-7b7c-9a52-3d2f7f0f2a11 --state failed
    """
    if args.limit < 1:
        raise CommandError("--limit has to be 1 or more.")
    found = [each for alias in conf().DATABASES for each in Batch.objects.using(alias).order_by("-pk")[: args.limit]]
    newest = sorted(found, key=attrgetter("pk"), reverse=True)[: args.limit]
    counted = [(each, counts(each)) for each in newest]
    about = ("name", "made_at", "ended_at")
    out.say_json([{"id": each.pk, **{name: getattr(each, name) for name in about}, **n} for each, n in counted])
    rows = [
        [each.pk, each.name, local(each.made_at), local(each.ended_at), *(n.get(state, 0) for state in State.values)]
        for each, n in counted
    ]
    out.say_table(["id", "name", "created", "ended", *State.values], rows, "There is no batch.")
