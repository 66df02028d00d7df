"""``manage.py jobs adopt``."""

from argparse import Namespace

from django.core.management.base import CommandError

from jobs.conf import conf
from jobs.contrib.adoption import activation
from jobs.contrib.console.base import DRY_RUN, JobsCommand, option, subcommand


@subcommand(
    option("--cancel", "cancel all jobs that have not ended, before they can run here", action="store_true"),
    DRY_RUN,
)
def adopt(out: JobsCommand, args: Namespace) -> None:
    """Let workers run the jobs of a database that is a copy, or that was moved.

    Workers refuse a database that bears the mark of another one. This marks it as what it is, and says how many
    jobs run from now on. With --cancel they are cancelled first, those too that the original was running, and
    the messages of a jobs:// broker are deleted. A database that is marked as itself is left alone.

    examples:
      manage.py jobs adopt --dry-run
      manage.py jobs adopt --cancel
    """
    found = {alias: activation.survey(alias) for alias in conf().DATABASES}
    others = [alias for alias, what in found.items() if what["marked_as"] != what["is"]]
    if args.cancel and not others:
        raise CommandError(
            "The database is marked as itself already: nothing was cancelled. If it is a copy nevertheless (of a "
            "disk: a snapshot), give it another JOBS['INSTANCE'] than its original has."
        )
    for alias, what in found.items():
        what |= {"cancelled": 0, "adopted": alias in others and not args.dry_run}
        if what["adopted"] and args.cancel:
            what["cancelled"] = done = activation.cancel_all(alias)
            left = sum(activation.survey(alias)["jobs"].values())
            if left:
                raise CommandError(
                    f"{done} jobs of {alias!r} were cancelled, {left} were not: they run, or are enqueued, at this "
                    "moment. The database was not adopted. Stop what works on it, and try again."
                )
        if what["adopted"]:
            activation.activate(alias)
    out.say_json(found)
    for alias, what in found.items():
        jobs = "{scheduled} scheduled, {ready} ready and {running} running jobs".format(**what["jobs"])
        if what.get("messages"):
            jobs += f" ({what['messages']} messages of the jobs:// broker)"
        if what.get("events"):
            jobs += f" ({what['events']} events that were not handed on, or not sent)"
        if alias not in others:
            out.say(f"{alias}: is marked as itself already; {jobs} run here")
            continue
        was = f"was marked as {what['marked_as']!r}" if what["marked_as"] else "was not marked"
        ends = f"{'would be' if args.dry_run else 'were'} cancelled"
        then = ends if args.cancel else "would run here" if args.dry_run else "run here"
        out.say(f"{alias}: {was}, {'would be' if args.dry_run else 'is'} adopted as {what['is']!r}; {jobs} {then}")
