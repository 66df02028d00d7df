"""``manage.py jobs effects``: the external calls that may or may not have happened."""

from argparse import Namespace
from collections.abc import Iterable
from itertools import chain

from django.core.management.base import CommandError

from jobs.conf import conf
from jobs.contrib.console.base import MEND, JobsCommand, option, reported, subcommand
from jobs.contrib.effects.operations import clear_up
from jobs.contrib.effects.rows import status, unsettled
from jobs.contrib.operations.given import parsed
from jobs.contrib.redaction.display import veil


@subcommand(
    option("id", "the number of one call, as listed", nargs="?", type=int, metavar="ID"),
    option("--happened", "it did: the next run of its job makes no call", action="store_true"),
    option("--answer", "what the next run gets as the provider's answer (with --happened)", metavar="JSON"),
    option("--not-happened", "it did not: the next run of its job makes the call", action="store_true"),
    option("--database", "of the call, if there are several (default: the first)", metavar="ALIAS"),
    wish=MEND,
)
def effects(out: JobsCommand, args: Namespace) -> None:
    """List the external calls of which nobody knows whether they happened, and say what you found.

    An ambiguous call waits for the next run of a job that makes it, which decides by the task's on_ambiguous=.
    A parked one waits for you: look at the provider for its key, say what you found, and retry the job. The
    exit status is 1 if nothing was changed that should be.

    examples:
      manage.py jobs effects
      manage.py jobs effects 17 --happened --answer '{"id": "ch_1"}'
      manage.py jobs effects 17 --not-happened
    """
    known = conf().DATABASES
    if args.database is not None and args.database not in known:
        raise CommandError(f"{args.database!r} is not one of JOBS['DATABASES'] ({', '.join(known)}).")
    if args.id is None:
        if args.happened or args.not_happened or args.answer is not None:
            raise CommandError("Say which call, by its number: manage.py jobs effects ID --happened.")
        _list_effects(out, [args.database] if args.database else known)
        return
    if args.happened == args.not_happened or (args.answer is not None and not args.happened):
        raise CommandError("Say one of the two: --happened (with --answer JSON), or --not-happened.")
    key, using = args.id, args.database or known[0]
    with reported(TypeError, ValueError, says="--answer cannot be kept as JSON: {}"):
        answer = None if args.answer is None else parsed(args.answer)
        is_done = clear_up(key, using, args.happened, answer)
    if not is_done:
        raise CommandError(f"{key} is no call that is ambiguous or parked (a run may be making it): nothing to say.")
    out.say_json({"database": using, "id": key, "happened": args.happened})
    out.say(f"{key} {'happened' if args.happened else 'did not happen'}: retry its job, if that has ended")


def _list_effects(out: JobsCommand, aliases: Iterable[str]) -> None:
    found = []
    every = [list(unsettled(alias)) for alias in aliases]
    for rows in every:
        veil(rows)
    for row in chain.from_iterable(every):
        using = row._state.db
        about = {"id": row.pk, "name": row.name, "key": row.key, "status": status(row), "calls": row.calls}
        found.append({"database": using, **about, "job": row.job, "created_at": row.created_at})
        where = f"{using}: " if len(conf().DATABASES) > 1 else ""
        out.say(f"{where}{row.pk} {row} {status(row)}, {row.calls} calls, job {row.job}")
    out.say_json(found)
    out.say(f"{len(found)} external calls are not settled.")
    if found:
        out.say("Look at the provider for the key, then: manage.py jobs effects ID --happened | --not-happened")
