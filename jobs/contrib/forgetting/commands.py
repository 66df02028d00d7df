"""``manage.py jobs forget --tag user=5``."""

from argparse import Namespace

from django.core.management.base import CommandError

from jobs.contrib.console.base import DRY_RUN, REASON, JobsCommand, me, option, reported, subcommand
from jobs.contrib.forgetting.forget import forget as forget_all
from jobs.contrib.tags.tags import parse


@subcommand(
    option("--tag", "of whom: user=5; with several: user=5,team=b", required=True),
    REASON,
    DRY_RUN,
)
def forget(out: JobsCommand, args: Namespace) -> None:
    """Delete all that jobs keep of a tag: a person asks to be forgotten.

    Jobs that have it, those that they called, and those of the handlers of their events, each with its history, its
    result and how far it was; their markers (the same call would be made again), their external calls and their
    events. What waits is cancelled, and what runs is asked to end. If something is left the exit status is 1, and
    nothing was deleted.

    examples:
      manage.py jobs forget --tag user=5 --dry-run
      manage.py jobs forget --tag user=5 --reason "asked on 2026-11-26"
    """
    with reported(TypeError, ValueError, says="--tag: {}"):
        tags = parse(args.tag)
    found = forget_all(tags, me(), args.reason, args.dry_run)
    is_done = not (args.dry_run or found.left)
    counts = {name: getattr(found, name) for name in ("jobs", "markers", "effects", "events")}
    out.say_json({"dry_run": args.dry_run, "deleted": is_done, **counts, "left": found.left})
    for key, why in found.left.items():
        out.say(f"{key} {out.style.WARNING(why)}")
    parts = ", ".join(f"{name} {count}" for name, count in counts.items())
    out.say(f"{'deleted' if is_done else 'would be deleted'}: {parts}")
    if found.left:
        raise CommandError("Something is left, and nothing was deleted.")
