"""``manage.py jobs adopt``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from jobs import instance
from jobs.commands.base import AS_JSON, DRY_RUN, Subcommand, option
from jobs.conf import conf


class Adopt(Subcommand):
    name = "adopt"
    summary = "let workers run the jobs of a database that is a copy, or that was moved"
    more = (
        "Workers refuse a database that bears the mark of another one. This marks it as what it is, and says how many\n"
        "jobs run from now on. With --cancel they are cancelled first, those too that the original was running, and\n"
        "the messages of a jobs:// broker are deleted. A database that is marked as itself is left alone."
    )
    options = (
        option("--cancel", action="store_true", help="cancel all jobs that have not ended, before they can run here"),
        DRY_RUN,
        AS_JSON,
    )
    examples = ("adopt --dry-run", "adopt --cancel")

    def run(self, *, cancel: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
        found = {alias: instance.survey(alias) for alias in conf().DATABASES}
        others = [alias for alias, what in found.items() if what["marked_as"] != what["is"]]
        if cancel and not others:
            raise CommandError(
                "The database is marked as itself already: nothing was cancelled. If it is a copy nevertheless (of a "
                "disk: a snapshot), give it another JOBS['INSTANCE'] than its original has."
            )
        for alias, what in found.items():
            what["cancelled"] = 0
            what["adopted"] = alias in others and not dry_run
            if not what["adopted"]:
                continue
            if cancel:
                what["cancelled"] = self._cancel(alias)
            instance.adopt(alias)
        if as_json:
            self.say_json(found)
            return
        for alias, what in found.items():
            self.say(f"{alias}: {self._describe(what, alias in others, cancel, dry_run)}")

    def _cancel(self, alias: str) -> int:
        done = instance.cancel_all(alias)
        left = sum(instance.survey(alias)["jobs"].values())
        if left:
            raise CommandError(
                f"{done} jobs of {alias!r} were cancelled, {left} were not: somebody runs or records them at this "
                "moment. The database was not adopted. Stop who works on it, and try again."
            )
        return done

    def _describe(self, what: dict[str, Any], is_other: bool, cancel: bool, dry_run: bool) -> str:
        parts = [f"{count} {state}" for state, count in what["jobs"].items()]
        jobs = f"{', '.join(parts[:-1])} and {parts[-1]} jobs"
        if what["messages"]:
            jobs += f" ({what['messages']} messages of the jobs:// broker)"
        if not is_other:
            return f"is marked as itself already; {jobs} run here"
        was = f"was marked as {what['marked_as']!r}" if what["marked_as"] else "was not marked"
        if cancel:
            then = f"{jobs} {'would be' if dry_run else 'were'} cancelled"
        else:
            then = f"{jobs} {'would run' if dry_run else 'run'} here"
        return f"{was}, {'would be' if dry_run else 'is'} adopted as {what['is']!r}; {then}"
