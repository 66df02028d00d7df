"""Traces of a model, played with the real functions on real connections: what the players of all models share.

Each step of a model is a function of ``jobs``; each process of the model has a connection of its own. After each step
the rows are what the model says. A process can be made to stand still at a point inside a function, and to die there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, ClassVar

from celery import current_app
from django.db import Error, connection, transaction

from jobs import store
from jobs.conf import syncpoints
from jobs.lifecycle import claims, transitions
from jobs.models import Cancellation, Job, Node, State
from jobs.store import databases
from jobs.store.base import Claim
from proof.guards import Code, taken_out
from tests.models import Effect

#: Seconds after which a call that does not come to its next point is said to wait for somebody.
LONGEST = 20.0


class Differs(AssertionError):
    """The code does something else than the model."""


class Died(BaseException):
    """The process ends here."""


class Session:
    """A thread with a connection, and what it has of a transaction."""

    _of_thread = threading.local()

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.open: Any = None
        self._points: tuple[str, ...] = ()
        self._call: Future[Any] | None = None
        #: Where the call stands still; empty: it has ended.
        self.at = ""
        #: What the function returned before which it stood (:func:`stopping`).
        self.found: Any = None
        self._news: SimpleQueue[str] = SimpleQueue()
        self._orders: SimpleQueue[bool] = SimpleQueue()

    def do(self, call: Callable[[], Any]) -> Any:
        return self._thread.submit(call).result()

    def start(self, call: Callable[[], Any], *points: str) -> None:
        """Do it until it stands at one of the points, or has ended."""
        self.launch(call, *points)
        self.at = self._news.get(timeout=LONGEST)

    @property
    def is_over(self) -> bool:
        return not self._news.empty()

    def launch(self, call: Callable[[], Any], *points: str) -> None:
        """Do it, and do not wait."""

        def run() -> Any:
            self._of_thread.session = self
            try:
                return call()
            finally:
                self._of_thread.session = None
                self._news.put("")

        self._points = points
        self.at = "?"
        self._call = self._thread.submit(run)

    def go_on(self, *points: str) -> None:
        """To the next one of the points, if others are named; or to the end."""
        if self.at:
            self._points = points or self._points
            self._orders.put(True)
            self.at = self._news.get(timeout=LONGEST)

    def end_call(self) -> Any:
        """Let it go on to its end; returns what it returned."""
        if self.at == "?":
            self.at = self._news.get(timeout=LONGEST)
        while self.at:
            self.go_on()
        call, self._call = self._call, None
        return call and call.result()

    def die(self) -> None:
        """The call ends where it stands."""
        if self.at == "?":
            self.at = self._news.get(timeout=LONGEST)
        if self.at:
            self._orders.put(False)
            self.at = self._news.get(timeout=LONGEST)
        self._call = None

    @classmethod
    def reach(cls, point: str) -> None:
        session = getattr(cls._of_thread, "session", None)
        if session is not None and point in session._points:
            session._news.put(point)
            if not session._orders.get():
                raise Died

    def begin(self) -> None:
        self.open = transaction.atomic()
        self.do(self.open.__enter__)

    def end(self, commits: bool) -> None:
        block, self.open = self.open, None
        if block is None:
            return
        if commits:
            self.do(lambda: block.__exit__(None, None, None))
            return
        # Its session may be gone.
        with suppress(Error):
            self.do(lambda: block.__exit__(RuntimeError, RuntimeError(), None))

    def close(self) -> None:
        self.die()
        self.end(commits=False)
        with suppress(Error):
            self.do(connection.close)
        self._thread.shutdown()


@contextmanager
def stopping(owner: Any, *names: str) -> Iterator[None]:
    """A session stands still before it calls these functions, if it is asked to."""

    def stop_before(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(*args: Any, **kwargs: Any) -> Any:
            Session.reach(name)
            found = function(*args, **kwargs)
            if (session := getattr(Session._of_thread, "session", None)) is not None:
                session.found = found
            return found

        return stopped

    before = {name: getattr(owner, name) for name in names}
    for name, function in before.items():
        setattr(owner, name, stop_before(name, function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


class Player:
    """Plays one trace after the other.

    A step ``@ w1 claims j0 token=3`` is a call of ``_claims("w1", 0, {"token": "3"})``: who does it, the number of the
    job, and what else the model says.
    """

    model: ClassVar[str]
    #: Of the walks by chance.
    flags: ClassVar[tuple[str, ...]] = ()
    #: What a trace leaves behind.
    tables: ClassVar[tuple[Any, ...]] = (Cancellation, Job, Node, Effect)

    def __init__(self) -> None:
        self.queue = current_app.conf.task_default_queue
        #: A transaction of the model is played at its end.
        self.is_lazy = store.of("default").has_one_writer
        self._sessions: dict[str, Session] = {}
        syncpoints.arm(Session.reach)

    def close(self) -> None:
        syncpoints.arm(None)
        for session in self._sessions.values():
            session.close()
        if connection.vendor == "postgresql":
            # Sessions may outlive their connections for a while, and keep the database from being dropped.
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            databases.ask("default", f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")

    def session(self, who: str) -> Session:
        if who not in self._sessions:
            self._sessions[who] = Session()
        return self._sessions[who]

    def play(self, steps: Sequence[str]) -> None:
        """Raises :class:`Differs`, which names the step."""
        self.reset()
        try:
            for number, step in enumerate(steps):
                try:
                    self._step(step)
                except Differs as exc:
                    raise Differs(f"step {number}, {step!r}: {exc}") from None
            self.end([step for step in steps if step.startswith("=")][-1:])
        finally:
            self.clean()

    def misses(self, code: Code, trace: Sequence[str]) -> str:
        """What is wrong, if the code does not go the way of a counterexample without the guard, and only then."""
        try:
            if code.is_guard:
                with suppress(Differs), taken_out(code, has_guard=True):
                    self.play(trace)
                    return "the code goes this way with its guard"
            with taken_out(code):
                self.play(trace)
        except (Differs, Error) as exc:
            return f"without its guard the code does not go this way: {exc}"
        return ""

    def reset(self) -> None:
        with transaction.atomic():
            for model in self.tables:
                model.objects.all()._raw_delete("default")
        self.ids: list[Any] = []

    def end(self, last: list[str]) -> None:
        """All go on to their ends."""

    def clean(self) -> None:
        for session in self._sessions.values():
            session.die()
            session.end(commits=False)

    def _step(self, step: str) -> None:
        kind, *words = step.split()
        if kind == "=":
            self.compare(words)
            return
        self.take(*words)

    def take(self, who: str, what: str = "", *rest: str) -> None:
        if not what.isidentifier():
            # Nobody in particular does it.
            who, what, rest = "", who, (what, *rest)
        given = dict(word.split("=") for word in rest if "=" in word)
        j = next((int(word[1:]) for word in rest if word[:1] == "j" and word[1:].isdigit()), None)
        getattr(self, f"_{what}")(who, j, given)

    def compare(self, words: list[str]) -> None:
        """Are the rows what the model says?"""

    def expect(self, found: Any, said: Any) -> None:
        if found != said:
            raise Differs(f"the code says {found}, and not {said}")

    # What several models have

    def claim(self, session: Session, node: Any, j: int, token: int | None = None) -> Job:
        """A claim of just this job."""
        self.make_due()
        Job.objects.filter(pk=self.ids[j]).update(rank=-5)
        claim = Claim(self.queue, node, 1, claims.new_token() if token is None else token)
        got = session.do(lambda: claims.Claimer().take("default", claim))
        self.expect([job.pk for job in got], [self.ids[j]])
        Job.objects.filter(pk=self.ids[j]).update(rank=0)
        return got[0]

    def make_due(self) -> None:
        if Job.objects.filter(state=State.SCHEDULED).update(run_at=transitions.now_plus(-1)):
            transitions.make_due("default", 100)
