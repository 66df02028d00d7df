"""Traces of the model of ownership, played with the real functions on real connections.

Each step of the model is a function of ``jobs``; each process of the model has a connection of its own. After each step
the rows are what the model says. Where a database has one writer, a transaction of the model is played at its end.

Only the crash of the database is made up: its rows are put back to what the model says was on disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from celery import current_app
from django.db import Error, connection, transaction

from jobs import store
from jobs.conf import syncpoints
from jobs.execution import finish
from jobs.lifecycle import claims, transitions
from jobs.maintenance import rescue
from jobs.maintenance.zombies import end_backends
from jobs.models import Cancellation, Job, Node, State
from jobs.store import databases
from tests import tasks
from tests.models import Effect

#: What the model calls the states.
STATES = {State.READY: 0, State.RUNNING: 1, State.SUCCEEDED: 2}
RENEWED = 32


class Differs(AssertionError):
    """The code does something else than the model."""


class Session:
    """A thread with a connection, and what it has of a transaction."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.open: Any = None
        self.backend: Any = None

    def do(self, call: Callable[[], Any]) -> Any:
        return self._thread.submit(call).result()

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
        self.end(commits=False)
        with suppress(Error):
            self.do(connection.close)
        self._thread.shutdown()


class Player:
    """Plays one trace after the other."""

    def __init__(self) -> None:
        self.queue = current_app.conf.task_default_queue
        self.is_lazy = store.of("default").has_one_writer
        self.sessions = [Session(), Session()]
        #: A step that the model has between a completion and its COMMIT goes in no message with it.
        syncpoints.arm(lambda point: None)

    def close(self) -> None:
        syncpoints.arm(None)
        for session in self.sessions:
            session.close()
        if connection.vendor == "postgresql":
            # Sessions may outlive their connections for a while, and keep the database from being dropped.
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            databases.ask("default", f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")

    def play(self, steps: Sequence[str]) -> None:
        """Raises :class:`Differs`, which names the step."""
        self._reset()
        try:
            for number, step in enumerate(steps):
                try:
                    self._step(step)
                except Differs as exc:
                    raise Differs(f"step {number}, {step!r}: {exc}") from None
            for j, w in list(self.completed.items()):
                self._commits(w, j, {}, [])
        finally:
            for session in self.sessions:
                session.end(commits=False)
            for session, _ in self.left.values():
                session.close()

    def _reset(self) -> None:
        for model in (Cancellation, Job, Node, Effect):
            model.objects.all()._raw_delete("default")
        self.ids: list[uuid.UUID] = []
        self.nodes: dict[int, uuid.UUID] = {}
        self.held: list[dict[int, Job]] = [{}, {}]
        #: Transactions without a client, by their job.
        self.left: dict[int, tuple[Session, Job]] = {}
        #: Whose session the server has ended, and who has completed.
        self.completed: dict[int, int] = {}
        self._crashed = False
        for number in (1, 2):
            self._new_node(number)

    def _new_node(self, number: int) -> None:
        self.nodes[number] = Node.objects.create(hostname="here", pid=number).pk

    def _step(self, step: str) -> None:
        kind, *words = step.split()
        if kind == "=":
            self._compare(words)
            return
        who, what, *rest = words
        given = dict(word.split("=") for word in rest if "=" in word)
        j = next((int(word[1:]) for word in rest if word in ("j0", "j1")), None)
        if who == "init":
            self.ids = [uuid.UUID(tasks.noop.delay(number).id) for number in range(2)]
        elif who in "ks":
            getattr(self, f"_{what}")(j, given)
        else:
            getattr(self, f"_{what}")(int(who), j, given, rest)

    # What a process does

    def _takes_id(self, w: int, j: Any, given: dict[str, str], rest: list[str]) -> None:
        self._new_node(int(rest[0]))

    def _claims(self, w: int, j: int | None, given: dict[str, str], rest: list[str]) -> None:
        self._make_due()
        wanted, token = [0, 1] if j is None else [j], int(given["token"])
        node = self.nodes.setdefault(int(given["node"]), uuid.uuid4())
        if j is not None:
            Job.objects.filter(pk=self.ids[j]).update(rank=-5)
        got = self.sessions[w].do(lambda: claims.Claimer().claim("default", self.queue, node, len(wanted), token))
        if j is not None:
            Job.objects.filter(pk=self.ids[j]).update(rank=0)
        if sorted(self.ids.index(job.pk) for job in got) != wanted:
            raise Differs(f"it claimed {[self.ids.index(job.pk) for job in got]}")
        self.held[w] |= {self.ids.index(job.pk): job for job in got}

    def _renews(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        job = self.held[w][j]
        self._expect(self.sessions[w].do(lambda: claims.renew(job)), given["owned"] != "0")
        if given["owned"] != "1":
            del self.held[w][j]

    def _begins(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        if not self.is_lazy:
            self.sessions[w].begin()
            self.sessions[w].do(lambda: Effect.objects.create(key=str(j)))

    def _completes(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        session, job, is_owned = self.sessions[w], self.held[w][j], given["owned"] == "1"
        if self.is_lazy and is_owned:
            self.completed[j] = w
            return
        if self.is_lazy:
            self._begin_late(session, j)
        self._expect(session.do(lambda: transitions.succeed(job, None, 0.0)), is_owned)
        if is_owned:
            self.completed[j] = w
            return
        session.end(commits=False)
        del self.held[w][j]

    def _begin_late(self, session: Session, j: int) -> None:
        session.begin()
        session.do(lambda: Effect.objects.create(key=str(j)))

    def _finish_late(self, session: Session, j: int, job: Job) -> None:
        if self.is_lazy:
            self._begin_late(session, j)
            self._expect(session.do(lambda: transitions.succeed(job, None, 0.0)), True)
        session.end(commits=True)

    def _commits(self, w: Any, j: Any, given: Any = None, rest: Any = None) -> None:
        if rest is None:
            # The server does, for a client that is gone: (j, given).
            session, job = self.left.pop(w)
            self._finish_late(session, w, job)
            session.close()
            return
        self.completed.pop(j)
        self._finish_late(self.sessions[w], j, self.held[w].pop(j))

    def _aborts(self, j: int, given: dict[str, str]) -> None:
        self.left.pop(j)[0].close()

    def _leave(self, w: int, j: int) -> None:
        """The client of a transaction is gone, and the server does not know."""
        self.completed.pop(j)
        self.left[j] = self.sessions[w], self.held[w][j]
        self.sessions[w] = Session()

    def _loses_answer(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self._leave(w, j)

    def _dies(self, w: int, j: Any, given: dict[str, str], rest: list[str]) -> None:
        for job, holder in list(self.completed.items()):
            if holder == w:
                self._leave(w, job)
        self.sessions[w].close()
        self.sessions[w], self.held[w] = Session(), {}
        self._new_node(max(self.nodes) + 1)

    def _cut(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self.completed.pop(j, None)
        self.sessions[w].close()
        self.sessions[w] = Session()

    def _believes(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self._expect(self._is_committed(w, j), True)
        del self.held[w][j]

    def _reads_nothing(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self._expect(self._is_committed(w, j), False)

    def _is_committed(self, w: int, j: int) -> bool:
        run: Any = SimpleNamespace(job=self.held[w][j], using="default")
        return bool(self.sessions[w].do(lambda: finish.is_committed(run)))

    def _loses(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self._give_up(w, j, given, lambda job, error: transitions.lose(job, error, 100))

    def _retries(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self._give_up(w, j, given, lambda job, error: transitions.retry(job, None, error, {}))

    def _give_up(self, w: int, j: int, given: dict[str, str], write: Callable[[Job, Any], bool]) -> None:
        job = self.held[w].pop(j)
        self.sessions[w].end(commits=False)
        error = transitions.error_entry("E", "m", attempt=job.lease)
        self._expect(self.sessions[w].do(lambda: write(job, error)), given["owned"] == "1")

    # What others do

    def _buries(self, j: Any, given: dict[str, str]) -> None:
        rescue.bury(self.nodes[int(given["node"])])

    def _rescues(self, j: int, given: dict[str, str]) -> None:
        row = Job.objects.get(pk=self.ids[j])
        if not Node.objects.filter(pk=row.node_id, dead_at__isnull=False).exists():
            raise Differs("its node lives")
        self._give_back(row, "NodeLost")

    def _gives_back_orphan(self, j: int, given: dict[str, str]) -> None:
        self._give_back(Job.objects.get(pk=self.ids[j]), "Orphaned")

    def _give_back(self, row: Job, kind: str) -> None:
        run = (row.pk, row.lease, row.token or 0)
        self._expect(rescue._finish_all([run], "default", "rescued", rescue._lose(kind, "m")), 1)

    def _ends_session(self, j: int, given: dict[str, str]) -> None:
        row = Job.objects.get(pk=self.ids[j])
        end_backends([(row.pk, row.lease)], "default")
        if j in self.left:
            self.left.pop(j)[0].close()
        elif (w := self.completed.pop(j, None)) is not None:
            self.sessions[w].end(commits=False)

    def _flushes(self, j: Any, given: dict[str, str]) -> None:
        """The rows do not change."""

    def _crashes(self, j: Any, given: dict[str, str]) -> None:
        for session in self.sessions:
            session.end(commits=False)
        for session, _ in self.left.values():
            session.close()
        self.left, self.completed, self._crashed = {}, {}, True

    # The rows

    def _make_due(self) -> None:
        if Job.objects.filter(state=State.SCHEDULED).update(run_at=transitions.now_plus(-1)):
            transitions.make_due("default", 100)

    def _compare(self, words: list[str]) -> None:
        self._make_due()
        for number, key in enumerate(self.ids):
            said = [int(word) for word in words[7 * number + 1 : 7 * number + 7]]
            if self._crashed:
                self._put_back(number, key, said)
            row = Job.objects.get(pk=key)
            token = row.token or 0
            found = [STATES.get(row.state, 9), row.lease, -token | RENEWED if token < 0 else token]
            found += [said[3] if row.node_id in (None, self.nodes.get(said[3])) else -1, row.node_losses]
            found.append(Effect.objects.filter(key=str(number)).count())
            if found[0] != 1:
                found[3] = said[3]
            # Where the model has one job, the other one had ended before.
            if found != said and said[:2] != [2, 0]:
                raise Differs(f"the row of job {number} is {found}")
        self._crashed = False

    def _put_back(self, number: int, key: uuid.UUID, said: list[int]) -> None:
        state = next(name for name, value in STATES.items() if value == said[0])
        token = -(said[2] & ~RENEWED) if said[2] & RENEWED else said[2] or None
        finished = {"finished_at": transitions.now_plus(0) if said[0] == 2 else None}
        values = {"state": state, "lease": said[1], "token": token, "node_losses": said[4], **finished}
        Job.objects.filter(pk=key).update(node=self.nodes.get(said[3]), **values)
        Effect.objects.filter(key=str(number)).delete()
        for _ in range(said[5]):
            Effect.objects.create(key=str(number))

    def _expect(self, found: Any, said: Any) -> None:
        if found != said:
            raise Differs(f"the code says {found}")
