"""The promise as queries over live data: what breaks it, and what is about to be put right.

Of each live state the first jobs are read, by its index, and of history a day, or all of both.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import Error, ProgrammingError
from django.db.models import Count
from django.utils import timezone
from django.utils.translation import gettext

from jobs import databases
from jobs.census import LIVE, MOST, in_line
from jobs.conf import conf
from jobs.fields import created_since
from jobs.models import Job, State
from jobs.verify.rules import RULES, SHAPES, View
from jobs.verify.suspicion import Suspicion, count, first

#: Of history what was made in so many seconds is read, and so many jobs at the most, unless all of it is asked for.
WINDOW, HISTORY = 86400.0, 100_000

#: How many rows a finding names.
EXAMPLES = 5

#: Seconds between two looks at rows that are watched.
STEP = 1.0


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
    findings = {id: Finding(id, str(says)) for id, (says, _) in SHAPES.items()}
    findings |= {rule.id: Finding(rule.id, str(rule.says)) for rule in RULES}
    for alias in conf().DATABASES:
        with _asking(alias):
            _hold_shapes(alias, findings, everything)
    suspicions = []
    for rule in RULES:
        for alias in (databases.home(),) if rule.at_home else conf().DATABASES:
            with _asking(alias):
                suspicions.append(Suspicion(rule, alias, view))
    if patient and (watched := [each for each in suspicions if each.bound and each.rows]):
        if tell is not None:
            number, longest = sum(each.count for each in watched), max(each.bound for each in watched)
            tell(f"{number} rows should have recovered by now: watching them for up to {longest:.0f} s")
        began = time.monotonic()
        while open_ones := [each for each in watched if each.rows and time.monotonic() - began < each.bound]:
            time.sleep(STEP)
            view = _look()
            for each in open_ones:
                each.look(view)
    for each in suspicions:
        finding = findings[each.rule.id]
        with _asking(each.alias):
            waiting = each.waiting(view)
            finding.recovering += max(0, count(waiting) - each.violations)
            # Without a bound they wait for a person, who has to know which.
            examples = first(waiting, EXAMPLES) if not each.bound else {}
        finding.add(each.alias, each.violations, (each.rows if each.violations else {}) | examples)
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
        if isinstance(exc, ProgrammingError) or "no such" in text:
            says = gettext(
                "the database %(database)r cannot be verified: %(error)s (not migrated? run manage.py migrate)"
            )
        else:
            says = gettext("the database %(database)r cannot be verified: %(error)s")
        raise Unverifiable(says % {"database": alias, "error": text}) from exc


def _hold_shapes(alias: str, findings: dict[str, Finding], everything: bool) -> None:
    """One pass over each of the live states, by its partial index, and one over history."""
    rows = Job.objects.using(alias)
    history = rows.exclude(state__in=LIVE)
    if not everything:
        history = history.filter(created_since(timezone.now() - datetime.timedelta(seconds=WINDOW)))
    scheduled, running = rows.filter(state=State.SCHEDULED).order_by("run_at"), rows.filter(state=State.RUNNING)
    for jobs, most in ((scheduled, MOST), (in_line(alias), MOST), (running, MOST), (history, HISTORY)):
        read = jobs if everything else jobs[:most]
        counts = read.aggregate(**{id: Count("pk", filter=broken) for id, (_, broken) in SHAPES.items()})
        for id, (_, broken) in SHAPES.items():
            if counts[id]:
                examples = jobs.filter(broken).values_list("pk", flat=True)[:EXAMPLES]
                findings[id].add(alias, counts[id], examples)
