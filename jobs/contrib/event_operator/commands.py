"""``manage.py jobs events``: list events, show what became of them, and replay them."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from jobs.conf import celery_app, conf, import_tasks
from jobs.contrib.console.base import DRY_RUN, LOOK, JobsCommand, local, option, project_app, reported, subcommand
from jobs.contrib.event_operator import replay
from jobs.contrib.event_operator.redaction import data_of, veil
from jobs.contrib.event_operator.stages import stage
from jobs.contrib.operations.selection import moment
from jobs.events import declare
from jobs.events.models import Event
from jobs.events.services import BrokerError
from jobs.models import Job
from jobs.models.values import parse_uuid

#: How many events a list shows.
SHOWN = 50

#: What the command says of each stage of an event.
STATES = {
    "unrelayed": "waiting",
    "parked": "waits for one before it",
    "unsent": "to be published",
    "sent": "published",
    "received": "handed on",
    "relayed": "handed on",
}


@subcommand(
    option("verb", "list, show, replay or schema", choices=["list", "show", "replay", "schema"]),
    option("ids", "ids of events (UUIDs)", nargs="*", metavar="ID"),
    option("--type", "events of this name; * is one word of it, # any number", action="append", metavar="NAME"),
    option("--since", "that happened since then: 2h, 7d, 2026-11-21", metavar="WHEN"),
    option("--until", "that happened before then", metavar="WHEN"),
    option("--problem", "list: only those that nobody handles", action="store_true"),
    option("--to", "replay: the service that gets them", metavar="SERVICE"),
    option("--again", "replay: also what it had already is handled once more", action="store_true"),
    option("--number", "replay: go on with the replay of this number, after a kill", metavar="NUMBER"),
    option("--dir", "schema: write a file for each event into this directory", metavar="DIRECTORY"),
    DRY_RUN,
    wish=LOOK,
)
def events(out: JobsCommand, args: Namespace) -> None:
    """List events, show what became of one, give them to a service once more, or write their schemas.

    "replay" goes to one service: to its handlers that did not have an event yet, or with --again to all of them.
    "schema" writes JSON Schema for the events that this project declares; without --dir it prints them.

    examples:
      manage.py jobs events list --since 2h --type "shop.order.*"
      manage.py jobs events show 019f3c1e-7d2a-7cc1-9d5e-2f3b1c0a9e88
      manage.py jobs events replay --to billing --since 2h --type "shop.order.*" --dry-run
      manage.py jobs events schema --dir schemas
    """
    {"list": _list, "show": _show, "replay": _replay, "schema": _schema}[args.verb](out, args)


def _selected(args: Namespace, using: str) -> QuerySet[Event]:
    keys = [parse_uuid(text) for text in args.ids]
    if None in keys:
        raise CommandError(f"{args.ids[keys.index(None)]!r} is no id of an event: a UUID, as the list shows it")
    if "" in (args.since, args.until, *(args.type or ())):
        # A script's variable that is not set would mean all events.
        raise CommandError("--since, --until and --type cannot be empty: leave the option out")
    with reported():
        since, until = (text and moment(text) for text in (args.since, args.until))
    rows = replay.select(using, args.type or (), since, until, keys=[key for key in keys if key] or None)
    return rows.filter(problem__isnull=False) if args.problem else rows


def _list(out: JobsCommand, args: Namespace) -> None:
    found: list[Event] = []
    for using in conf().DATABASES:
        newest = list(_selected(args, using).order_by("-id")[: SHOWN + 1])
        veil(newest)
        found += newest
    found.sort(key=lambda event: event.at, reverse=True)
    out.say_json([_plain(event) for event in found[:SHOWN]])
    rows = [
        [local(event.at), str(event.uuid), event.name, event.source, event.order_key or "-", state_of(event)]
        for event in found[:SHOWN]
    ]
    out.say_table(["happened", "id", "name", "from", "order key", "state"], rows, "There is no such event.")
    if len(found) > SHOWN:
        out.say(f"The newest {SHOWN}; --type, --since and --until tell which others.")


def state_of(event: Event) -> str:
    """How far the event is, or why no handler handles it."""
    return str(event.problem) if event.problem is not None else STATES[stage(event)]


def _plain(event: Event) -> dict[str, Any]:
    names = "name version source order_key at relayed_at number sent_at received_at problem job".split()
    return {"id": event.uuid, **{name: getattr(event, name) for name in names}, "state": state_of(event)}


def _show(out: JobsCommand, args: Namespace) -> None:
    if len(args.ids) != 1:
        raise CommandError("Say which event: manage.py jobs events show ID")
    for using in conf().DATABASES:
        if (event := _selected(args, using).first()) is not None:
            break
    else:
        raise CommandError(f"There is no event {args.ids[0]}; it may be older than JOBS['RETENTION_EVENTS'].")
    data = data_of(event)
    jobs = list(Job.objects.using(using).filter(parent_id=event.uuid).order_by("id"))
    told = list(Event.objects.using(using).filter(job__in=[job.pk for job in jobs]).order_by("id"))
    veil([event, *told])
    handlers = [{"handler": job.task, "job": job.pk, "state": job.state, "attempts": job.lease} for job in jobs]
    out.say_json({**_plain(event), "data": data, "handlers": handlers, "told": [_plain(each) for each in told]})
    at = local(event.at)
    out.say(f"{event.name} (version {event.version}), told of by {event.source} at {at}: {state_of(event)}")
    if event.job is not None:
        out.say(f"by the job {event.job}")
    out.say(json.dumps(data, ensure_ascii=False, indent=2), keep="\n")
    if not handlers:
        out.say("No job handles it in this database.")
    for each in handlers:
        out.say(f"{each['handler']}: {each['state']} (job {each['job']})")
    for then in told:
        out.say(f"then {then.name} [{then.uuid}]")


def _replay(out: JobsCommand, args: Namespace) -> None:
    if not args.to:
        raise CommandError("Say to which service: --to billing. Events are never given to all of them again.")
    if not (args.ids or args.type or args.since):
        raise CommandError("Say which events: their ids, --type or --since.")
    app = project_app()
    done = {"events": 0, "jobs": 0, "sent": 0}
    for using in conf().DATABASES:
        rows = _selected(args, using)
        if args.dry_run:
            with reported():
                replay.check(using, args.to)
            done["events"] += replay.ready(rows).count()
            continue
        says = "The broker of events says: {}. Nothing is lost: do the same again."
        with reported(BrokerError, says=says), reported():
            for name, count in replay.replay(app, rows, args.to, args.again, args.number).items():
                done[name] += count
    out.say_json({**done, "to": args.to, "dry_run": args.dry_run})
    if args.dry_run:
        out.say(f"{done['events']} events would be looked at for {args.to}")
    else:
        out.say(f"{done['events']} events: {done['jobs']} jobs made, {done['sent']} messages sent to {args.to}")


def _schema(out: JobsCommand, args: Namespace) -> None:
    if (app := celery_app()) is not None:
        # A module that cannot be imported must raise: its events must not be left out silently.
        import_tasks(app)
    found = {f"{each.name}.v{each.version}.json": each for each in declare.types.values()}
    if not found:
        raise CommandError("This project declares no event: @event of jobs.events, in a module that is imported.")
    schemas = {name: each.schema.json_schema(each.name, each.version) for name, each in sorted(found.items())}
    out.say_json(schemas)
    if args.dir is None:
        out.say(json.dumps(schemas, ensure_ascii=False, indent=2), keep="\n")
        return
    directory = Path(args.dir)
    for name, schema in schemas.items():
        if not args.dry_run:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(json.dumps(schema, ensure_ascii=False, indent=2) + "\n")
        out.say(str(directory / name))
