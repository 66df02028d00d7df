"""Rows that break a rule of ``manage.py jobs verify``, and what it says of them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection
from django.db.models import CheckConstraint
from django.utils import timezone

from jobs.contrib.verify.verify import RULES, Finding, Report, verify
from jobs.models import Job, Node
from tests.helpers.rows import let_heartbeat, make_node

#: The rule, and what breaks it and returns the key that is named.
Breaker = tuple[str, Callable[[], object]]

LONG = 900.0


def ago(seconds: float) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(seconds=seconds)


@contextmanager
def unguarded() -> Iterator[None]:
    """Without the CHECK constraints, as in a database that somebody has been at."""
    #: PostgreSQL has no such switch.
    switch = {"sqlite": "PRAGMA ignore_check_constraints = {}", "mysql": "SET check_constraint_checks = NOT {}"}
    quote, ignore = connection.ops.quote_name, switch.get(connection.vendor)
    with connection.cursor() as cursor:
        if ignore is not None:
            cursor.execute(ignore.format(1))
        else:
            present = connection.introspection.get_constraints(cursor, "jobs_job")
            for name in [name for name, what in present.items() if what["check"]]:
                cursor.execute(f"ALTER TABLE jobs_job DROP CONSTRAINT {quote(name)}")
    try:
        yield
    finally:
        Job.objects.all().delete()
        if ignore is not None:
            with connection.cursor() as cursor:
                cursor.execute(ignore.format(0))
        else:
            with connection.schema_editor() as editor:
                for constraint in Job._meta.constraints:
                    if isinstance(constraint, CheckConstraint):
                        editor.add_constraint(Job, constraint)


def found(report: Report) -> dict[str, Finding]:
    return {finding.rule: finding for finding in report.findings}


def broken(report: Report) -> dict[str, int]:
    return {finding.rule: finding.violations for finding in report.findings if finding.violations}


def recovering(report: Report) -> dict[str, int]:
    return {finding.rule: finding.recovering for finding in report.findings if finding.recovering}


def watching_worker() -> Node:
    """One that has been there for an hour, and whose only process does nothing."""
    return let_heartbeat(make_node(started_at=ago(3600), concurrency=1))


def worker_node() -> Node:
    return Node.objects.get(started_at__lt=ago(3000))


def assert_seen(rule: str, break_it: Callable[[], object]) -> None:
    """The rule names just this row, and no other rule does."""
    with unguarded():
        key = break_it()
        report = verify(patient=False)
        assert found(report)[rule].examples == [str(key)]
        allowed = {rule, "silent-node-dead"} if rule == "silent-node-rescued" else {rule}
        if connection.vendor != "sqlite":
            allowed.add("schema-complete")  # unguarded() dropped constraints
        assert set(broken(report)) <= allowed
        assert found(report)[rule].violations == 1


def assert_waits(rule: str, break_it: Callable[[], object]) -> None:
    """As long as nobody could put it right it is not broken."""
    break_it()
    report = verify()
    assert broken(report) == {}
    assert found(report)[rule].recovering >= 1


def rules_of(package: str) -> set[str]:
    return {rule.id for rule in RULES if rule.broken.__module__.startswith(package)}


def with_a_bound(breakers: list[Breaker]) -> list[Breaker]:
    bounded = {rule.id for rule in RULES if rule.bound()}
    return [each for each in breakers if each[0] in bounded]
