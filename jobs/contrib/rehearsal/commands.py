"""``manage.py jobs replay ID --dry-run``."""

import json
from argparse import Namespace
from typing import Any

from django.core.management.base import CommandError

from jobs.contrib.console.base import ID, PROVE, JobsCommand, option, project_app, reported, subcommand
from jobs.contrib.console.change import key_of
from jobs.contrib.rehearsal.rehearse import Refused, rehearse


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


def lines(found: dict[str, Any]) -> list[str]:
    """The report for a person."""
    said = [f"{found['task']} {found['id']} {found['outcome']}; all of it was rolled back"]
    if "result" in found:
        said.append(f"  returns {found['result']}")
    for each in found["tables"]:
        parts = [f"{each[what]} {what}" for what in ("inserted", "changed", "deleted") if each[what]]
        said.append(f"  {each['model'] or each['table']}: {', '.join(parts)}")
    for row in found["rows"]:
        pairs = ", ".join(f"{name}: {_brief(old)} -> {_brief(new)}" for name, (old, new) in row["fields"].items())
        said.append(f"    {row['what']} {row['model']} {row['pk']} {pairs}".rstrip())
    for call in found["jobs"]:
        given = [*map(_brief, call["args"]), *(f"{name}={_brief(value)}" for name, value in call["kwargs"].items())]
        said.append(f"  calls {call['task']}({', '.join(given)}) on {call['queue']}")
    said += [f"  tells of {each['name']} {_brief(each['data'])}" for each in found["events"]]
    said += [f"  tried {each['what']}{': it ended there' if each['stopped'] else ''}" for each in found["tried"]]
    said += [f"  after the commit: {name}" for name in found["on_commit"]]
    said += [f"  {note}" for note in found["notes"]]
    if "error" in found:
        said += ["", found["error"]["traceback"].rstrip()]
    return said


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
