"""``manage.py jobs replay ID --dry-run``."""

from argparse import Namespace

from django.core.management.base import CommandError

from jobs.contrib.console.base import ID, PROVE, JobsCommand, option, project_app, reported, subcommand
from jobs.contrib.console.change import key_of
from jobs.contrib.rehearsal.rehearse import Refused, rehearse
from jobs.contrib.rehearsal.report import lines


@subcommand(ID, option("--dry-run", "roll back whatever it does: the only way so far", action="store_true"), wish=PROVE)
def replay(out: JobsCommand, args: Namespace) -> None:
    """Run the body of a job with its real arguments, show what it would do, and roll all of it back.

    Rows, jobs and events are those of a transaction that is not committed. Mails, HTTP requests, cache writes and
    messages to stock tasks are shown and stopped: a mail counts as sent, a request ends the body. What else leaves the
    process (files, sockets, other threads) is not seen. The rows that it writes are locked as long as it runs. The exit
    status is 1 if the body would fail.

    examples:
      manage.py jobs replay --dry-run 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11
    """
    if not args.dry_run:
        raise CommandError(f"Say --dry-run. To let it run for good: manage.py jobs retry {args.id}")
    app, key = project_app(), key_of(args.id)
    with reported(Refused):
        found = rehearse(key, app)
    out.say_json(found)
    for line in lines(found):
        out.say(line, keep="\n")
    if found["outcome"] == "fails":
        raise CommandError("The body would fail, and nothing of this would be kept.")
