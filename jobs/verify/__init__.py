"""The promise as queries over live data: what breaks it, and what is about to be put right.

Of each live state the first jobs are read, by its index, and of history a day, or all of both.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import Error, ProgrammingError
from django.db.models import Count, QuerySet
from django.utils import timezone
from django.utils.translation import gettext

from jobs import databases
from jobs.census import MOST, in_line
from jobs.conf import conf
from jobs.fields import created_since
from jobs.models import Job, State
from jobs.verify import delivery, external, markers, ownership, rows
from jobs.verify.rule import LIVE, Rule, Shape, View
from jobs.verify.suspicion import Suspicion, watch

#: Of history what was made in so many seconds is read, and so many jobs at the most, unless all of it is asked for.
WINDOW, HISTORY = 86400.0, 100_000

#: How many rows a finding names.
EXAMPLES = 5

SHAPES: tuple[Shape, ...] = rows.SHAPES

#: In the order of the report. A module with a promise of its own writes its rules in a file of this package,
#: and adds them here.
RULES: tuple[Rule, ...] = (*ownership.RULES, *delivery.RULES, *external.RULES, *markers.RULES, *rows.RULES)


class Unverifiable(Exception):
    """A database does not answer: nothing is known of the promise."""


@dataclass(slots=True)
class Finding:
    """What was found about one rule, in all databases."""

    rule: str
    says: str
    violations: int = 0
    recovering: int = 0
    #: Keys of rows that break it, and of rows that wait for a person; with several databases each behind its alias.
    examples: list[str] = field(default_factory=list)

    def add(self, alias: str, violations: int, keys: Iterable[Hashable]) -> None:
        self.violations += violations
        prefix = f"{alias}:" if len(conf().DATABASES) > 1 else ""
        self.examples = [*self.examples, *(f"{prefix}{key}" for key in keys)][:EXAMPLES]


@dataclass(slots=True)
class Report:
    findings: list[Finding]
    #: How many workers beat.
    workers: int

    @property
    def violations(self) -> int:
        return sum(finding.violations for finding in self.findings)

    @property
    def recovering(self) -> int:
        return sum(finding.recovering for finding in self.findings)


def verify(*, everything: bool = False, patient: bool = True, tell: Callable[[str], None] | None = None) -> Report:
    """Hold the rules against all job databases. Changes nothing.

    Parameters:
        everything: read all live jobs and all history, and not only the first of them.
        patient: watch rows that should have recovered by now for as long as recovery may take, before they are
            called violations. Without it the times in the rows decide at once: right after an outage they
            are wrong.
        tell: is called with a sentence before a watch begins.

    Raises:
        Unverifiable: a database does not answer, or has not all tables.
    """
    view = _look()
    every: tuple[Shape | Rule, ...] = (*SHAPES, *RULES)
    findings = {each.id: Finding(each.id, str(each.says)) for each in every}
    for alias in conf().DATABASES:
        with _asking(alias):
            _hold_shapes(alias, findings, everything)
    suspicions = []
    for rule in RULES:
        for alias in rule.databases():
            with _asking(alias):
                if rule.bound is not None:
                    suspicions.append(Suspicion(rule, alias, view))
                else:
                    _hold(findings[rule.id], rule, view, alias)
    if patient and (suspicious := [each for each in suspicions if each.rows]):
        if tell is not None:
            count, longest = sum(each.count for each in suspicious), max(each.bound for each in suspicious)
            tell(f"{count} rows should have recovered by now: watching them for up to {longest:.0f} s")
        watch(suspicious, _look)
    for suspicion in suspicions:
        finding = findings[suspicion.rule.id]
        with _asking(suspicion.alias):
            finding.recovering += max(0, suspicion.waiting - suspicion.violations)
        finding.add(suspicion.alias, suspicion.violations, suspicion.rows if suspicion.violations else ())
    return Report(list(findings.values()), len(view.working))


def _look() -> View:
    with _asking(databases.home()):
        return View()


@contextmanager
def _asking(alias: str) -> Iterator[None]:
    try:
        yield
    except Error as exc:
        text = str(exc).strip()
        is_empty = isinstance(exc, ProgrammingError) or "no such" in text
        if is_empty:
            says = gettext(
                "the database %(database)r cannot be verified: %(error)s (not migrated? run manage.py migrate)"
            )
        else:
            says = gettext("the database %(database)r cannot be verified: %(error)s")
        raise Unverifiable(says % {"database": alias, "error": text}) from exc


def _hold(finding: Finding, rule: Rule, view: View, alias: str) -> None:
    broken = rule.broken(view, alias)
    count, examples = broken.count(), broken.first(EXAMPLES)
    if rule.waiting is not None:
        waiting = rule.waiting(view, alias)
        finding.recovering += max(0, waiting.count() - count)
        examples |= waiting.first(EXAMPLES)
    finding.add(alias, count, examples)


def _hold_shapes(alias: str, findings: dict[str, Finding], everything: bool) -> None:
    """One pass over each of the live states, by its partial index, and one over history."""
    rows = Job.objects.using(alias)
    history = rows.exclude(state__in=LIVE)
    if not everything:
        history = history.filter(created_since(timezone.now() - datetime.timedelta(seconds=WINDOW)))
    scopes: dict[str | None, QuerySet[Job]] = {
        State.SCHEDULED: rows.filter(state=State.SCHEDULED).order_by("run_at"),
        State.READY: in_line(alias),
        State.RUNNING: rows.filter(state=State.RUNNING),
        None: history,
    }
    for state, jobs in scopes.items():
        shapes = {f"shape{number}": shape for number, shape in enumerate(SHAPES) if state in shape.states}
        read = jobs if everything else jobs[: HISTORY if state is None else MOST]
        counts = read.aggregate(**{name: Count("pk", filter=shape.broken) for name, shape in shapes.items()})
        for name, shape in shapes.items():
            if counts[name]:
                examples = jobs.filter(shape.broken).values_list("pk", flat=True)[:EXAMPLES]
                findings[shape.id].add(alias, counts[name], examples)
