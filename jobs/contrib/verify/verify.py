"""The promise as queries over live data: which rows break it, and which are about to be put right.

It reads the first jobs of each live state, by its index, the last jobs of history, and the newest markers; or all.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from django.db import Error
from django.db.models import Count, QuerySet
from django.utils.translation import gettext

from jobs import extensions
from jobs.conf import conf
from jobs.contrib.inspection.counts import MOST, in_line
from jobs.contrib.operations.selection import newest
from jobs.contrib.operator.store import asking
from jobs.contrib.verify.rules import HISTORY, RULES, SHAPES, Rows, Rule, Search, View
from jobs.contrib.verify.store import may_write
from jobs.lifecycle.transitions import now_plus
from jobs.models import LIVE, Job, State
from jobs.store import databases

# Import the extensions' rules, which register themselves.
tuple(extensions.modules("rules"))

WINDOW = 86400.0  #: How many seconds back history is read, unless all of it is asked for.
PART = 100_000  #: How many jobs one statement reads if all are asked for.
EXAMPLES = 5  #: How many rows a finding names.
STEP = 1.0  #: Seconds between two looks at watched rows.


class Unverifiable(Exception):
    """A database does not answer, so the promise cannot be checked."""


@dataclass(slots=True)
class Finding:
    """What was found about one rule, in all databases."""

    rule: str
    says: str
    violations: int = 0
    recovering: int = 0
    #: Keys of rows that break the rule, or wait for a person; with several databases ``alias:key``.
    examples: list[str] = field(default_factory=list)

    def add(self, alias: str, violations: int, keys: Iterable[Hashable]) -> None:
        self.violations += violations
        prefix = f"{alias}:" if len(conf().DATABASES) > 1 else ""
        self.examples = [*self.examples, *(f"{prefix}{key}" for key in keys)][:EXAMPLES]


class Report(NamedTuple):
    findings: list[Finding]
    violations: int
    recovering: int
    workers: int  #: How many workers beat.


def verify(*, everything: bool = False, patient: bool = True, tell: Callable[[str], None] | None = None) -> Report:
    """Hold the rules against all job databases. Changes nothing.

    Parameters:
        everything: read all live jobs and all history, and not only a part.
        patient: watch rows that should have recovered by now, for as long as recovery may take, before they count as
        violations. Without it the times in the rows decide at once, which is wrong right after an outage.
        tell: is called with a sentence before a watch begins.

    Raises:
        Unverifiable: a database does not answer, or lacks a table.
    """
    sentences = {id: says for id, (says, _) in SHAPES.items()} | {rule.id: rule.says for rule in RULES}
    findings = {id: Finding(id, str(says)) for id, says in sentences.items()}
    view, suspicions = _look(everything), []
    for alias in conf().DATABASES:
        with _asking(alias):
            _hold_shapes(alias, findings, everything)
            rules = [rule for rule in RULES if alias == databases.home() or not rule.at_home]
            suspicions += [Suspicion(rule, alias, view) for rule in rules]
    if patient and (watched := [each for each in suspicions if each.bound and each.rows]):
        if tell is not None:
            number, longest = sum(each.count for each in watched), max(each.bound for each in watched)
            tell(f"{number} rows should have recovered by now: watching them for up to {longest:.0f} s")
        began = time.monotonic()
        while open_ones := [each for each in watched if each.rows and time.monotonic() - began < each.bound]:
            time.sleep(STEP)
            view = _look(everything)
            for each in open_ones:
                with _asking(each.alias):
                    each.look(view)
    for each in suspicions:
        with _asking(each.alias):
            each.conclude(view, findings[each.rule.id])
    found = list(findings.values())
    violations, recovering = sum(each.violations for each in found), sum(each.recovering for each in found)
    return Report(found, violations, recovering, len(view.working))


def _look(everything: bool) -> View:
    with _asking(databases.home()):
        return View(everything)


@contextmanager
def _asking(alias: str) -> Iterator[None]:
    try:
        with asking(alias):
            yield
    except Error as exc:
        says = gettext("the database %(database)r cannot be verified: %(error)s")
        raise Unverifiable(says % {"database": alias, "error": databases.describe(exc)}) from exc


def _hold_shapes(alias: str, findings: dict[str, Finding], everything: bool) -> None:
    """Hold the shapes against each live state, by its partial index, and against history."""
    rows = Job.objects.using(alias)
    live = [rows.filter(state=State.SCHEDULED).order_by("run_at"), in_line(alias), rows.filter(state=State.RUNNING)]
    if everything:
        passes: Iterable[Any] = chain(((jobs, None) for jobs in live), ((jobs, None) for jobs in _parts(rows)))
    else:
        last = rows.exclude(state__in=LIVE).filter(finished_at__gte=now_plus(-WINDOW)).order_by("-finished_at")
        # Ended jobs without the time of their end are not in that index.
        endless = newest(rows).exclude(state__in=LIVE).filter(finished_at=None)
        passes = [*((jobs, MOST) for jobs in live), (last, HISTORY), (endless, MOST)]
    for jobs, most in passes:
        read = jobs[:most]
        counts = read.aggregate(**{id: Count("pk", filter=broken) for id, (_, broken) in SHAPES.items()})
        for id in filter(counts.get, SHAPES):
            examples = jobs.filter(SHAPES[id][1]).values_list("pk", flat=True)[:EXAMPLES]
            findings[id].add(alias, counts[id], examples)


def _parts(rows: QuerySet[Job]) -> Iterator[QuerySet[Job]]:
    """All ended jobs, part by part: one statement for millions of rows would hold up the server's vacuum."""
    ends: list[Any] = []
    while True:
        part = rows.filter(pk__gt=ends[0]) if ends else rows
        ends = list(part.order_by("pk").values_list("pk", flat=True)[PART - 1 : PART])
        yield (part.filter(pk__lte=ends[0]) if ends else part).exclude(state__in=LIVE)
        if not ends:
            return


class Suspicion:
    """The rows of one database that break a rule, judged by the times in them.

    Right after an outage all times are old, although nothing is broken. So, under a bound, rows are violations only if
    they do not change while a worker could put them right.
    """

    def __init__(self, rule: Rule, alias: str, view: View) -> None:
        self.rule, self.alias, self.bound = rule, alias, rule.bound()
        broken = self._broken(view)
        self.rows = _first(broken, conf().BATCH)  #: The first rows: as many as one round of maintenance handles.
        self.count = _count(broken) if len(self.rows) == conf().BATCH else len(self.rows)

    def look(self, view: View) -> None:
        """Forget the rows that have changed."""
        now = _first([part.filter(pk__in=list(self.rows)) for part in self._broken(view)], len(self.rows))
        self.rows = {key: version for key, version in self.rows.items() if now.get(key) == version}

    @property
    def violations(self) -> int:
        if self.count <= conf().BATCH:
            return len(self.rows)
        # One round of maintenance does not reach all rows. If the first ones change, nothing is broken.
        return self.count if len(self.rows) == conf().BATCH else 0

    def conclude(self, view: View, finding: Finding) -> None:
        """Add to the finding the rows that break the rule, and those that wait to be put right."""
        look = self.rule.waiting or (self.rule.broken if self.bound else None)
        waiting = [] if look is None else look(Search(view, self.alias, 0.0))
        finding.recovering += max(0, _count(waiting) - self.violations)
        # Without a bound the rows wait for a person, who needs their keys.
        examples = _first(waiting, EXAMPLES) if not self.bound else {}
        finding.add(self.alias, self.violations, (self.rows if self.violations else {}) | examples)

    def _broken(self, view: View) -> Rows:
        """The rows that break the rule; under a bound, none if no worker could have put them right."""
        if self.bound and view.worked_for < self.bound:
            return []
        broken = self.rule.broken(Search(view, self.alias, self.bound))
        return [] if self.bound and _first(broken, 1) and not may_write(self.alias) else broken


def _first(rows: Rows, limit: int) -> dict[Hashable, list[Any]]:
    """The first rows: their keys, and the columns of a job that change when it is put right."""
    found: dict[Hashable, list[Any]] = {}
    for part in rows:
        if isinstance(part, QuerySet):
            part = part.values_list("pk", *(("state", "lease", "run_at") if part.model is Job else ()))
        found |= {key: version for key, *version in part[: limit - len(found)]}
    return found


def _count(rows: Rows) -> int:
    return sum(part[:MOST].count() if isinstance(part, QuerySet) else len(part) for part in rows)
