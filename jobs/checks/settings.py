"""Checks of Django's settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.utils.module_loading import import_string

from jobs import conf
from jobs.checks.base import careful, databases, several
from jobs.models import Job

#: psycopg.IsolationLevel
READ_COMMITTED = 2


#: Seconds that nobody means to keep a history for.
SHORT = 3600.0


@register("jobs")
@careful
def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    for problem in conf.problems():
        yield Error(problem, id="jobs.E001", hint="See jobs/conf.py for every key.")


@register("jobs")
@careful
def check_redaction(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Not among the problems of the settings: these are asked for when the function's module cannot be imported yet."""
    path = None if conf.problems() else conf.conf().REDACT
    try:
        if path is not None:
            import_string(path)
    except Exception as exc:
        yield Error(
            f"JOBS['REDACT'] cannot be imported: {exc}",
            hint="Name a function redact(task, name, value) by its dotted path. Until then all values are hidden.",
            id="jobs.E013",
        )


@register("jobs")
@careful
def check_retention(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """Days were meant, perhaps."""
    for name in ("RETENTION", "RETENTION_FAILED", "MARKER_RETENTION") if not conf.problems() else ():
        seconds = getattr(conf.conf(), name)
        if seconds is not None and seconds < SHORT:
            yield Warning(
                f"JOBS[{name!r}] is {seconds:g} seconds: what is older is deleted.",
                hint=f"For days write datetime.timedelta(days={seconds:g}). Silence this if seconds are meant.",
                id="jobs.W018",
            )


@register("jobs")
@careful
def check_sqlite(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """A transaction that begins as a reader and then writes fails at once when another one wrote."""
    for alias, database in databases():
        mode = str(database.get("OPTIONS", {}).get("transaction_mode") or "").upper()
        if database["ENGINE"].endswith("sqlite3") and mode not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Error(
                f"The SQLite database {alias!r} does not use IMMEDIATE transactions.",
                hint=(
                    "Set OPTIONS = {'transaction_mode': 'IMMEDIATE', 'timeout': 20, "
                    "'init_command': 'PRAGMA journal_mode=WAL'}."
                ),
                id="jobs.E002",
            )


@register("jobs")
@careful
def check_time_zones(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield Error(
            "Jobs need USE_TZ = True: naive times are ambiguous when clocks change.",
            hint="Set USE_TZ = True; TIME_ZONE may be whatever you like.",
            id="jobs.E004",
        )


@register("jobs")
@careful
def check_transactions(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    for alias, database in databases():
        if not database.get("AUTOCOMMIT", True):
            yield Error(
                f"The database {alias!r} has AUTOCOMMIT = False: no worker would commit what it claims and settles.",
                hint="Remove AUTOCOMMIT; transaction.atomic() is what makes transactions.",
                id="jobs.E007",
            )
        level = database.get("OPTIONS", {}).get("isolation_level")
        is_postgres = connections[alias].vendor == "postgresql"
        if is_postgres and level is not None and int(level) != READ_COMMITTED:
            yield Warning(
                f"The database {alias!r} uses another isolation level than READ COMMITTED: transactions that meet are "
                "refused by the server, their bodies run again, and each time counts as a node loss.",
                hint="Remove isolation_level from OPTIONS, and use select_for_update() where bodies meet.",
                id="jobs.W004",
            )


@register("jobs")
@careful
def check_routing(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    """A job is committed with the data it belongs to only if both are in the same database."""
    aliases = [alias for alias, _ in databases()]
    if not aliases:
        return
    for alias in aliases:
        if not router.allow_migrate_model(alias, Job):
            yield Error(
                f"JOBS['DATABASES'] names {alias!r}, and the database routers keep the tables of jobs out of it.",
                hint=f"Let allow_migrate({alias!r}, {Job._meta.app_label!r}) of DATABASE_ROUTERS return True, or None.",
                id="jobs.E006",
            )
    home = router.db_for_write(Job)
    if home not in aliases:
        yield Error(
            f"The database routers write jobs to {home!r}, which is not in JOBS['DATABASES']: every call would raise.",
            hint=f"Set JOBS = {{'DATABASES': [{home!r}, ...]}}, or route {Job._meta.app_label!r} to one of {aliases}.",
            id="jobs.E005",
        )
        return
    own = [
        model
        for config in apps.get_app_configs()
        if config.label != Job._meta.app_label and not config.name.startswith("django.contrib.")
        for model in config.get_models()
        if model._meta.managed
    ]
    elsewhere = {router.db_for_write(model) for model in own}
    if elsewhere and home not in elsewhere:
        yield Warning(
            f"Jobs are written to the database {home!r}, and no model of the project is: a job is not committed "
            "together with the data it belongs to.",
            hint=f"Let jobs live where your data is ({several(elsewhere)}): JOBS['DATABASES'], and DATABASE_ROUTERS.",
            id="jobs.W003",
        )
