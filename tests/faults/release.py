"""The releases before and after this one, played; there is no other release yet.

What a process of the release before knows of the database is held by the server: its role may see the tables and
columns of migration 0001 and nothing else, so that a statement about any other fails there. Its code is ours without
what came later. Of the release after, only the version of its jobs is played, which this one does not know.
"""

from __future__ import annotations

import os
from typing import Any

from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.models import Q

from jobs import history, idempotency, instance, lifecycle, lockstores, message
from jobs.maintenance import rescue, tally
from jobs.models import Job, Node, State
from jobs.statements import Slot, Update
from tests.faults.database import Database

FIRST = ("jobs", "0001_initial")


def before(database: Database) -> dict[str, str]:
    """What a process of the release before finds in its environment."""
    role = f"{connection.settings_dict['NAME']}_before"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} LOGIN")
        cursor.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
        cursor.execute(f"GRANT ALL ON tests_effect, tests_order TO {role}")
        for model in MigrationLoader(connection).project_state(FIRST).apps.get_app_config("jobs").get_models():
            columns = ", ".join(field.column for field in model._meta.concrete_fields)
            cursor.execute(
                f"GRANT SELECT ({columns}), INSERT ({columns}), UPDATE ({columns}), DELETE "
                f"ON {model._meta.db_table} TO {role}"
            )
    return {"JOBS_TEST_RELEASE": "before", "DATABASE_URL": database.url.replace("//jobs@", f"//{role}@")}


#: What a process of the release after finds in its environment.
AFTER = {"JOBS_TEST_RELEASE": "after"}


def play() -> None:
    """In a process of the other release, while its tasks are imported: be that release."""
    match os.environ.get("JOBS_TEST_RELEASE"):
        case "before":
            _forget_later_releases()
        case "after":
            message.VERSION += 1


def _forget_columns(model: Any, known: Any) -> None:
    field: Any
    for field in model._meta.concrete_fields:
        if field.name not in known:
            field.column, field.concrete = None, False
            setattr(model, field.name, None)
    model._meta._expire_cache()


def _forget_later_releases() -> None:
    """Unknown in 0001: the connection of a run, a wish that it ends, whose database it is, keys, markers, locks, pauses
    of queues, counts, and what a worker says of itself.
    """
    known = MigrationLoader(None).project_state(FIRST).models
    first = known["jobs", "job"].fields
    _forget_columns(Job, first)
    _forget_columns(Node, known["jobs", "node"].fields)
    claimable, waiting = lifecycle._claimable, lifecycle._waiting

    def claimable_then(using: str) -> tuple[Any, dict[str, Any]]:
        rows, values = claimable(using)
        del values["backend"]
        return rows, values

    def unbroken_then(using: str) -> tuple[Any, dict[str, Any]]:
        rows = Job.objects.using(using).filter(
            pk=Slot(Job, "id"), state=State.RUNNING, lease=Slot(Job, "lease"), token=Slot(Job, "token")
        )
        values = {"state": State.SUCCEEDED, "finished_at": lifecycle.Now(), "result": Slot(Job, "result")}
        return rows, values | {"error": None}

    def waiting_then(run_at: Any) -> dict[str, Any]:
        return {name: value for name, value in waiting(run_at).items() if name in first}

    def ended_then(using: str, states: Any, age: float) -> Any:
        past = lifecycle.now_plus(-age)
        rows = Job.objects.using(using).filter(state__in=states, finished_at__lt=past, created_at__lt=past)
        return rows.order_by("created_at")

    lifecycle.is_paused = lambda using: Q(pk__in=[])  # type: ignore[assignment,return-value]
    tally.Count.run_once = lambda self: {}  # type: ignore[method-assign]
    lifecycle._waiting = waiting_then
    history.ended = ended_then
    idempotency.delete_expired = lambda *args: 0
    lockstores.prune = lambda side: 0
    lifecycle._CLAIM = Update(claimable_then)
    lifecycle._SUCCEED = Update(unbroken_then)
    lifecycle.asked_to_end = lambda job: None
    lifecycle.ask_to_end = lambda *args: False
    lifecycle.sweep_cancellations = lambda *args: 0
    rescue.end_backends = lambda keys, using: 0
    instance.check_all = lambda: None
