"""``manage.py jobs why``."""

from argparse import Namespace

from django.core.management.base import CommandError
from django.utils.translation import gettext

from jobs.contrib.console.base import ID, LOOK, JobsCommand, subcommand
from jobs.contrib.console.change import key_of
from jobs.contrib.why.explain import explain
from jobs.models import State


@subcommand(ID, wish=LOOK)
def why(out: JobsCommand, args: Namespace) -> None:
    """Say why a job is where it is, with evidence and cure.

    The first reason is the one that counts; the others would count after it. Nothing is changed. The exit
    status is 1 if there is no such job.

    examples:
      manage.py jobs why 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs why --json ID
    """
    key = key_of(args.id)
    view, found = explain(key)
    job = None if view is None else view.job
    listed = [{name: getattr(each, name) for name in ("code", "says", "cure", "evidence")} for each in found]
    about = {name: job and getattr(job, name) for name in ("task", "state", "queue")}
    out.say_json({"id": str(key), **about, "database": view and view.using, "reasons": listed})
    if job is not None:
        state = out.style.WARNING(str(dict(State.choices).get(job.state, job.state)))
        out.say(f"{job.task}[{key}] {state}, {gettext('queue')} {job.queue}")
    for number, reason in enumerate(found, 1):
        out.say(f"{number}. {out.style.MIGRATE_HEADING(reason.says) if number == 1 else reason.says}")
        if reason.cure:
            out.say(f"   -> {reason.cure}")
    if job is None and found[0].code == "unknown":
        raise CommandError(gettext("There is no job %(id)s.") % {"id": key})
