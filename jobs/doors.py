"""The doors through which a feature extends the core: the methods of :class:`Extension`.

They stand in the order in which a job meets them. Each says when it is called, and in which transaction.
``jobs/extensions.py`` finds them. What an extension asks other ones is the class ``Doors`` in its ``doors.py``.
A door without a user costs nothing: ``extensions.through()`` gives an empty tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from typing import Any

Attempt = Callable[[Callable[[], Any]], bool]
Thread = Callable[[Event, Attempt], None]


class Extension:
    """The parts of one feature. Override the doors that it needs; the core does not call the other ones."""

    def ready(self) -> None:
        """Called in each process once Django has loaded all apps and models."""

    # A task is declared, and called

    #: Options of ``@shared_task``: what a value must be, in words and as types. For people: the class's docstring.
    options: Mapping[str, tuple[str, tuple[Any, ...]]] = {}
    #: Checks a queue's options in ``JOBS["QUEUES"]``; they are its parameters. ``ValueError``: they cannot work.
    queue_options: Callable[..., Any]

    def declared(self, task: type[Any]) -> None:
        """A task's class was made; models may not be. ``TypeError``, ``ValueError``: the task's options cannot work."""

    # A call

    def composed(self, job: Any, headers: Mapping[str, Any] | None, caller: Any) -> None:
        """A call became a row, not inserted yet. ``headers``: the caller's own; ``caller``: the task that calls."""

    def committed(self, job: Any, app: Any) -> None:
        """A call was committed, if an extension had marked it (``is_awaited``). Must not raise.

        With autocommit off nothing tells of the commit: then each call comes here when it is written.
        """

    def carried(self) -> Mapping[str, Any]:
        """Headers of an event that is about to be published: the runs of its handlers get them."""
        return {}

    def called(self, task: type[Any]) -> Callable[[Any, Any], None] | None:
        """A task's class was made: return a function that gets the task and the row of each call, or message, of it.

        The row is not inserted yet. The function raises ``TypeError`` or ``ValueError`` to refuse the call.
        """

    #: Replacements for parts of the core, or of another extension: the path of a class or function there, and the path
    #: of its replacement. If several extensions replace one class, a class is made that inherits from all replacements.
    #: A function can be replaced by one extension only, and so can a class for which it has a function.
    instead: Mapping[str, str] = {}

    #: Stores of databases that the core does not know: the vendor as Django names it, and the path of a ``Store``.
    stores: Mapping[str, str] = {}

    # A job's row

    def inserting(self, jobs: list[Any], using: str) -> None:
        """Jobs are about to be inserted into the caller's transaction: change them, or raise. It sees each call."""

    def taken(self, call: Any, holder: Any, using: str) -> Any:
        """Another job has this call's unique key. Insert a job that stands in for the call, and return it; or None."""

    def replacing(self, job: Any, using: str) -> None:
        """This call replaces a body: it has the id of the body's job, and is about to be inserted."""

    def came(self, using: str, queues: Iterable[str]) -> None:
        """Jobs have come, and are committed: the queue of each. Must not raise."""

    def happened(self, jobs: Iterable[Any], using: str, action: str) -> None:
        """After the commit: runs of jobs started or are over, or waiting jobs were cancelled. Must not raise.

        ``action``: ``started``, ``succeeded``, ``retried``, ``failed``, ``cancelled``; else the job waits again.
        """

    def find(self, job: Any) -> Any:
        """The task of a claimed job is not registered in this process: import it, or None. It may raise anything."""

    def put_aside(self, job: Any) -> bool:
        """No extension finds the task of a claimed job: let it wait, with others like it. False: it is handed back."""
        return False

    # A run

    def around(self, run: Any) -> AbstractContextManager[Any]:
        """A context around a run, from its claim until it is finished. Must not raise errors of its own."""
        return nullcontext()

    #: Runs a job whose task it made ``is_async``, from begin to end, in this thread (``testing``).
    run_inline: Callable[[Any], None]

    #: How far bodies are (``said.py`` of the progress): ``say`` it for ``Task.progress()``, and read it for people.
    progress: Any

    def completing(self, run: Any) -> Callable[[], None] | None:
        """A body returned: what is to be written just before its completion. What that raises fails the job."""

    def ended(self, job: Any, error: Mapping[str, Any]) -> Callable[[], None] | None:
        """A job is about to end without success, by its run or from outside: what to write in that transaction.

        If the transaction is repeated, what was written is rolled back; this, or what it returned, may be called again.
        """

    #: Announces runs, from the process of each, if ``worker_state.wants_events``: ``send_start(run)``, and
    #: ``send_outcome(run, seconds)`` when Celery has been told.
    tells: Any

    #: Implements the result backend's methods for chords (``chords.py`` of the canvas); each also gets the app.
    chords: Any

    # The worker: beside each one there is a supervisor, a process with threads

    def attaching(self, worker: Any) -> None:
        """A worker that has tasks of ours is set up: change it, or add steps to it (``worker.app.steps``)."""

    def starting(self, worker: Any) -> None:
        """A worker is about to start, and has not forked. What this raises keeps it from starting.

        Extensions are called by their names: before the system checks a setting may be wrong.
        """

    #: Makes an executor of other jobs for each process (``worker/executors.py``), before the worker forks; or None.
    executor: Callable[[Any], Any]

    def threads(self) -> Iterable[Thread]:
        """Threads of the supervisor. Each runs until its event is set, and queries databases in steps only.

        The second argument runs a step: it logs what goes wrong, and returns whether all went well.
        """
        return ()

    def registered(self) -> None:
        """The supervisor has written this worker's node; it may claim from now on."""

    #: Questions, by name, for the clock's one query of a database: has this table (SQL) a row with this condition?
    #: ``{epoch}`` is the database's time. What stands behind ``{rare}`` is asked seldom if the queries are slow.
    looks: Mapping[str, str] = {}
    #: Commands of Celery's remote control. Each also gets Celery's own; it queries a database by ``supervisor.do()``.
    controls: Mapping[str, Callable[..., Any]] = {}

    def ticked(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """The clock has looked, each second or so: the answers to ``looks`` of each database that could be asked."""
