"""``manage.py jobs effects``."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError

from jobs import effects
from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.conf import conf
from jobs.models import Effect


class Effects(Subcommand):
    name = "effects"
    summary = "list the external calls of which nobody knows whether they happened, and say what you found"
    more = (
        "An ambiguous call waits for the next run of a job that makes it, which decides by the task's on_ambiguous=.\n"
        "A parked one waits for you: look at the provider for its key, say what you found, and retry the job. The\n"
        "exit status is 1 if nothing was changed that should be."
    )
    options = (
        option("id", nargs="?", type=int, metavar="ID", help="the number of one call, as listed"),
        option("--happened", action="store_true", help="it did: the next run of its job makes no call"),
        option("--answer", metavar="JSON", help="what the next run gets as the provider's answer (with --happened)"),
        option("--not-happened", action="store_true", help="it did not: the next run of its job makes the call"),
        option("--database", metavar="ALIAS", help="of the call, if there are several (default: the first)"),
        AS_JSON,
    )
    examples = (
        "effects",
        'effects 17 --happened --answer \'{"id": "ch_1"}\'',
        "effects 17 --not-happened",
    )

    def run(
        self,
        *,
        id: int | None,
        happened: bool,
        not_happened: bool,
        answer: str | None,
        database: str | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        if database is not None and database not in conf().DATABASES:
            raise CommandError(f"{database!r} is not one of JOBS['DATABASES'] ({', '.join(conf().DATABASES)}).")
        if id is None:
            if happened or not_happened or answer is not None:
                raise CommandError("Say which call, by its number: manage.py jobs effects ID --happened.")
            self._list([database] if database else list(conf().DATABASES), as_json)
        elif happened == not_happened or (answer is not None and not happened):
            raise CommandError("Say one of the two: --happened (with --answer JSON), or --not-happened.")
        else:
            using = database or conf().DATABASES[0]
            self._settle(id, using, happened, answer)
            if as_json:
                self.say_json({"database": using, "id": id, "happened": happened})
            else:
                self.say(f"{id} {'happened' if happened else 'did not happen'}: retry its job, if that has ended")

    def _list(self, aliases: list[str], as_json: bool) -> None:
        rows = [(alias, row) for alias in aliases for row in effects.unsettled(alias).iterator()]
        if as_json:
            self.say_json([{"database": alias, **as_dict(row)} for alias, row in rows])
            return
        for alias, row in rows:
            where = f"{alias}: " if len(conf().DATABASES) > 1 else ""
            self.say(f"{where}{row.pk} {row} {effects.status(row)}, {row.calls} calls, job {row.job}")
        self.say(f"{len(rows)} external calls are not settled.")
        if rows:
            self.say("Look at the provider for the key, then: manage.py jobs effects ID --happened | --not-happened")

    def _settle(self, key: int, using: str, happened: bool, answer: str | None) -> None:
        try:
            value = None if answer is None else json.loads(answer)
            is_done = effects.happened(key, using, value) if happened else effects.did_not_happen(key, using)
        except (TypeError, ValueError) as exc:
            raise CommandError(f"--answer cannot be kept as JSON: {exc}") from exc
        if not is_done:
            raise CommandError(
                f"{key} is no call that is ambiguous or parked (a run may be making it): nothing to say."
            )


def as_dict(row: Effect) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.name,
        "key": row.key,
        "status": effects.status(row),
        "calls": row.calls,
        "job": str(row.job),
        "created_at": row.created_at.isoformat(),
    }
