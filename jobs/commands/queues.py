"""``manage.py jobs pause|resume``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from jobs import census, queues
from jobs.commands.base import AS_JSON, Subcommand, me, option


class Switch(Subcommand):
    """What both say of the queues that they were given."""

    def report(self, done: dict[str, bool], word: str, otherwise: str, as_json: bool) -> None:
        if as_json:
            paused = {
                row.queue: {"at": row.at.isoformat(), "by": row.by, "reason": row.reason}
                for row in queues.paused().values()
            }
            self.say_json({"changed": [name for name, changed in done.items() if changed], "paused": paused})
            return
        for name, changed in done.items():
            ready = census.ready(name) if changed else ""
            self.say(f"{name}: {word}, {ready} jobs are ready" if changed else f"{name}: {otherwise}")


class PauseQueue(Switch):
    name = "pause"
    summary = "let the jobs of queues wait, for every worker at once, until they are resumed"
    more = (
        "What runs goes on. Jobs are enqueued as before, and expire as before. It survives restarts of everything.\n"
        "Without a queue: say which are paused."
    )
    options = (
        option("names", nargs="*", metavar="QUEUE", help="the name of a queue"),
        option("--reason", default="", help="why, for those who ask"),
        AS_JSON,
    )
    examples = ("pause", 'pause mail --reason "the mail server is moved"')

    def run(self, *, names: list[str], reason: str, as_json: bool, **options: Any) -> None:
        try:
            done = {name: queues.pause(name, me(), reason) for name in dict.fromkeys(names)}
        except ValueError as exc:
            raise CommandError(str(exc)) from exc
        self.report(done, "paused", "was paused already", as_json)
        if names or as_json:
            return
        rows = queues.paused().values()
        for row in rows:
            self.say(f"{row.queue}: paused at {row.at:%Y-%m-%d %H:%M:%S} UTC by {row.by or '?'} {row.reason}".rstrip())
        if not rows:
            self.say("No queue is paused.")


class ResumeQueue(Switch):
    name = "resume"
    summary = "let the jobs of paused queues run again"
    more = "Workers that consume them go on within a second or so."
    options = (option("names", nargs="+", metavar="QUEUE", help="the name of a queue"), AS_JSON)
    examples = ("resume mail",)

    def run(self, *, names: list[str], as_json: bool, **options: Any) -> None:
        done = {name: queues.resume(name) for name in dict.fromkeys(names)}
        self.report(done, "resumed", "was not paused", as_json)
