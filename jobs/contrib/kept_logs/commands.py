"""``manage.py jobs logs``."""

from argparse import Namespace
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from jobs.contrib.console.base import ID, LOOK, JobsCommand, option, subcommand
from jobs.contrib.console.change import key_of
from jobs.contrib.kept_logs import rows
from jobs.models import Job
from jobs.store import databases


@subcommand(ID, option("--attempt", "of one attempt alone", type=int, metavar="NUMBER"), wish=LOOK)
def logs(out: JobsCommand, args: Namespace) -> None:
    """Show what the body of a job logged, attempt by attempt.

    They are the lines that JOBS["KEEP_LOGS"] keeps. Those of a task whose arguments are encrypted are shown on the
    job's page, to who may read them. The exit status is 1 if there is no such job.

    examples:
      manage.py jobs logs 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
      manage.py jobs logs --attempt 2 ID
      manage.py jobs logs --json ID
    """
    key = key_of(args.id)
    job: Job | None = databases.first(Job.objects.filter(pk=key))
    if job is None:
        raise CommandError(f"There is no job {key}; manage.py jobs why {key} says what that may mean.")
    found = [each for each in rows.attempts(job)[::-1] if args.attempt in (None, each["attempt"])]
    out.say_json([_joined(each) for each in found])
    for each in found:
        out.say(out.style.MIGRATE_HEADING(f"attempt {each['attempt']}"))
        if each["first"] is None:
            out.say("  (encrypted)")
            continue
        _say(out, each["first"])
        if each["dropped"]:
            out.say(out.style.WARNING(f"... {each['dropped']} more were dropped ..."))
        _say(out, each["last"])
    if not found:
        out.say(f"{job} has no lines: JOBS['KEEP_LOGS'] says of which tasks they are kept.")


def _joined(each: dict[str, Any]) -> dict[str, Any]:
    lines = None if each["first"] is None else [*each["first"], *each["last"]]
    return {"attempt": each["attempt"], "dropped": each["dropped"], "lines": lines}


def _say(out: JobsCommand, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        at = timezone.localtime(line["at"])
        when = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"
        out.say(f"{when} {line['level']:<8} {line['logger']}: {line['message']}", keep="\n")
