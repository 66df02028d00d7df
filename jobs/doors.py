"""The doors by which a feature comes into the core: the methods of :class:`Extension`.

They stand in the order in which a job meets them. Each says when it is called, and in which transaction.
``jobs/extensions.py`` finds them.

A door that nobody uses costs nothing: ``extensions.through()`` gives an empty tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from threading import Event
from typing import Any, Protocol

Attempt = Callable[[Callable[[], Any]], bool]
Thread = Callable[[Event, Attempt], None]


class Extension:
    """The parts of one feature. Override those that it has; what is left alone takes no part."""

    # A task is declared, and called

    #: Options of ``@shared_task``: what a value must be, in words and as types.
    options: Mapping[str, tuple[str, tuple[type, ...]]] = {}

    def declared(self, task: type[Any]) -> None:
        """A task's class was made; not all models may be. ``TypeError``, ``ValueError``: its options cannot work."""

    # A call

    def composed(self, job: Any, headers: Mapping[str, Any] | None, caller: Any) -> None:
        """Any call became a row, not inserted yet. ``headers``: the caller's own; ``caller``: the task that calls."""

    def publishing(self) -> AbstractContextManager[Any]:
        """A context around receivers of Celery's signals of a call."""
        return nullcontext()

    def committed(self, job: Any) -> None:
        """A call was committed that :meth:`composed` has marked (``is_awaited``). May raise nothing."""

    def carried(self) -> Mapping[str, Any]:
        """Headers of an event that is told of now: what the runs of its handlers have from the one who told."""
        return {}

    def called(self, task: Any, job: Any) -> None:
        """A task's call, or a message, became a row, not inserted yet. ``TypeError``, ``ValueError``: it cannot be."""

    def claimer(self, app: Any) -> Any:
        """What claims for one process: a subclass of ``Claimer``, which may hold jobs back. One extension has it."""

    # A job's row

    def inserting(self, jobs: list[Any], using: str) -> None:
        """Jobs are about to be inserted into the caller's transaction: change them, or raise. Each call comes by."""

    def replacing(self, job: Any, using: str) -> None:
        """A body is replaced by this call, which has its job's id, and is about to be inserted."""

    def again(self, jobs: Any, using: str) -> Mapping[str, Any]:
        """Somebody lets an ended job (a queryset) run again; in that transaction, before its row gets these columns."""
        return {}

    #: A condition of ended jobs that are still needed, by the database's alias, and the sentence that says so.
    needed: tuple[Callable[[str], Any], Any]

    def deletable(self, jobs: Any, using: str) -> Any:
        """Those of the ended jobs that may be deleted; both are querysets."""

    def deleting(self, jobs: Any, using: str) -> None:
        """Ended jobs (a queryset) are about to be deleted, in that transaction."""

    def disown(self, using: str) -> None:
        """All jobs of a copy of a database are cancelled: forget what would run, or be called, all the same."""

    def find(self, job: Any) -> Any:
        """The task of a claimed job is not registered in this process: import it, or None. It may raise anything."""

    # A run

    def around(self, run: Any) -> AbstractContextManager[Any]:
        """A context around a run, from its claim until it is finished. May raise nothing of its own."""
        return nullcontext()

    def say(self, run: Any, done: float, total: float | None, text: str) -> None:
        """``Task.progress()``, in the body of a run; ``TypeError`` or ``ValueError``: what it says cannot be."""

    def completing(self, run: Any) -> Callable[[], None] | None:
        """A body returned: what is to be written just before its completion. What that raises fails the job."""

    def ended(self, job: Any, error: Mapping[str, Any]) -> Callable[[], None] | None:
        """A job is about to end without success, whoever ends it: what is to be written in the transaction of that."""

    #: What counts the parts of a chord (``chords.py`` of the canvas) for the result backend.
    chords: Any

    # The worker: beside each one there is a supervisor, a process with threads

    def threads(self) -> Iterable[Thread]:
        """Threads of the supervisor, with connections of their own. Each runs until its event is set.

        What they are given besides makes one attempt: it logs what goes wrong, and says whether nothing did.
        """
        return ()

    def registered(self) -> None:
        """The supervisor has written this worker's node; it may claim from now on."""

    def heard(self, told: Collection[str] | None) -> None:
        """The supervisor was notified of these queues, or ends (None: anything may be new). Wakes its threads."""

    #: SQL for true or false, by name, in the clock's one look at a database: ``{epoch}`` is its time, and what stands
    #: behind ``{rare}`` is asked seldom if its looks are slow.
    looks: Mapping[str, str] = {}

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """The clock has looked, each second or so: the answers to ``looks`` of each database that could be asked."""

    def set_rate(self, task: str, rate: str) -> None:
        """``celery control rate_limit``."""

    def idle(self, app: Any, using: str) -> bool:
        """``run_jobs()`` finds no job: do what threads and ticks would do. True: there may be one now."""
        return False

    def prune(self, using: str, budget: float) -> Mapping[str, int] | None:
        """Delete what is old, in ``budget`` seconds; one worker does it. Says what and how many (``prune --json``)."""

    def survey(self, using: str) -> Mapping[str, int]:
        """More for ``manage.py jobs adopt --json``: what else would run in a copy of a database."""
        return {}

    def passing(self, app: Any, aliases: Sequence[str], only: Collection[str] | bool) -> Passing | None:
        """For ``run_jobs(until=)``: what comes due as time passes that is no job yet. ``only``: names, or all."""

    # Questions: none of them changes anything

    def status(self, found: dict[str, Any]) -> Mapping[str, Any]:
        """More for ``manage.py jobs status --json`` and what builds on it; ``found`` has what the core found."""
        return {}

    #: The kinds of problems that :meth:`problems` finds, in their order (``inspection/problems.py``).
    kinds: Mapping[str, Any] = {}

    def problems(self, found: dict[str, Any]) -> Iterable[Any]:
        """What needs attention, by what the core and ``status`` found."""
        return ()

    def panel(self, request: Any, found: dict[str, Any]) -> str:
        """A part of the dashboard, as HTML that is safe; empty: this reader sees none."""
        return ""

    def job_page(self, request: Any, view: Any) -> tuple[str, str]:
        """Parts of a job's page, as HTML that is safe: one above all, and a ``<dt>`` with its ``<dd>``."""
        return "", ""

    def link(self, using: str, key: Any) -> str:
        """A row names this id, and it is no job's: a link to what has it, as HTML that is safe; empty: nothing here."""
        return ""

    def waits(self, view: Any) -> Iterable[Any]:
        """What a job waits for beside its time, or its turn in the queue; without a reason it is told these."""
        return ()

    def keeps(self, queue: str) -> bool:
        """Whether the first ready job of the queue is held back, so that no worker is at fault."""
        return False

    def free(self, queue: str, rows: Any) -> Any:
        """Those of the ready jobs of a queue that are certainly not held back, as a queryset."""
        return rows

    def known(self, what: str) -> Iterable[str]:
        """Names of each ``task``, or of each ``queue``, that jobs had, also of those that are gone."""
        return ()

    def metrics(self) -> Iterable[tuple[str, str, list[str], Any]]:
        """For Prometheus: name (a counter's ends with ``_total``), help, labels, and what finds values and a number."""
        return ()

    def causes(self, view: Any) -> Iterable[Any]:
        """Why a job is where it is, before the last reason of the core: that it runs, waits, or how it ended."""
        return ()

    def selects(self) -> Mapping[str, Any]:
        """By what more people select jobs: a ``selection.Field`` by its name."""
        return {}

    def other(self, what: Any) -> Any:
        """What is no job, and has an id like one's: by the id, or the row; a ``public.Other``."""
        return None

    def said(self, jobs: Iterable[Any], is_veiled: bool) -> Mapping[Any, Any]:
        """What the last run of each job said of how far it is, by their ids: ``percent``, ``text``, ``str()``."""
        return {}

    def reasons(self, view: Any) -> Iterable[Any]:
        """Why a job is where it is, after the reasons of the core."""
        return ()


class Passing(Protocol):
    """What comes due while ``run_jobs(until=)`` lets time pass."""

    def next(self, until: datetime) -> datetime | None:
        """The next moment at which something is due; None: there is none."""

    def make(self, at: datetime) -> None:
        """Make jobs of what is due at that moment."""
