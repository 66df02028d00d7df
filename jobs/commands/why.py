"""``manage.py jobs why``."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext

from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.models import State
from jobs.why import Reason, View, explain


class Why(Subcommand):
    name = "why"
    summary = "say why a job is where it is, with evidence and cure"
    more = (
        "The first reason is the one that counts; the others would count after it. Nothing is changed. The exit\n"
        "status is 1 if there is no such job."
    )
    options = (option("id", metavar="ID", help="the id of a job (a UUID)"), AS_JSON)
    examples = ("why 6f1c2a34-0d7e-4b7c-9a52-3d2f7f0f2a11", "why --json ID")

    def run(self, *, id: str, as_json: bool, **options: Any) -> None:
        try:
            key = uuid.UUID(id)
        except ValueError:
            says = gettext("%(id)r is no valid UUID: give the job's id as delay() returned it.")
            raise CommandError(says % {"id": id}) from None
        view, reasons = explain(key)
        if as_json:
            self.say_json(as_dict(key, view, reasons))
        else:
            self._write(key, view, reasons)
        if view is None:
            raise CommandError(gettext("There is no job %(id)s.") % {"id": key})

    def _write(self, key: uuid.UUID, view: View | None, reasons: list[Reason]) -> None:
        if view is not None:
            job = view.job
            state = self.style.WARNING(str(dict(State.choices).get(job.state, job.state)))
            self.say(f"{job.task}[{key}] {state}, {gettext('queue')} {job.queue}")
        for number, reason in enumerate(reasons, 1):
            says = self.style.MIGRATE_HEADING(reason.says) if number == 1 else reason.says
            self.say(f"{number}. {says}")
            if reason.cure:
                self.say(f"   -> {reason.cure}")


def as_dict(key: uuid.UUID, view: View | None, reasons: list[Reason]) -> dict[str, Any]:
    job = view and view.job
    return {
        "id": str(key),
        "task": job and job.task,
        "state": job and job.state,
        "queue": job and job.queue,
        "database": view and view.using,
        "reasons": [
            {"code": each.code, "says": each.says, "cure": each.cure, "evidence": each.evidence} for each in reasons
        ],
    }
