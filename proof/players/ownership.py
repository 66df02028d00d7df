"""Who owns a job. Where a database has one writer, a transaction of the model is played at its end.

Only the crash of the database is made up: its rows are put back to what the model says was on disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from jobs.contrib.sessions.zombies import end_backends
from jobs.execution import finish
from jobs.lifecycle import claims, transitions
from jobs.maintenance import rescue
from jobs.models import Job, Node, State
from proof.player import Differs, Player, Session
from tests import tasks
from tests.models import Effect

#: What the model calls the states.
STATES = {State.READY: 0, State.RUNNING: 1, State.SUCCEEDED: 2}
RENEWED = 32


class Ownership(Player):
    model, flags = "ownership", ("FAULTS=3",)

    def __init__(self) -> None:
        super().__init__()
        self.sessions = [Session(), Session()]

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        super().close()

    def end(self, last: list[str]) -> None:
        for j, w in list(self.completed.items()):
            self._commits(w, j, {}, [])
        # What a dead client has locked is not locked for ever.
        for j in self.left:
            row = Job.objects.get(pk=self.ids[j])
            if Node.objects.filter(pk=row.node_id, dead_at__isnull=False).exists():
                end_backends([(row.pk, row.lease)], "default")
                run = (row.pk, row.lease, row.token or 0)
                rescue._finish_all([run], "default", "rescued", rescue._lose("NodeLost", "m"))
                self.compare(last[0].split()[1:])

    def clean(self) -> None:
        for session in self.sessions:
            session.end(commits=False)
        for session, _ in self.left.values():
            session.close()

    def reset(self) -> None:
        super().reset()
        self.nodes: dict[int, uuid.UUID] = {}
        #: Of the numbers of the model.
        self.tokens: dict[int, int | None] = {}
        self.held: list[dict[int, Job]] = [{}, {}]
        #: Transactions without a client, by their job.
        self.left: dict[int, tuple[Session, Job]] = {}
        #: The process that has completed each job, before its COMMIT.
        self.completed: dict[int, int] = {}
        self._crashed = False
        for number in (1, 2):
            self._new_node(number)

    def _new_node(self, number: int) -> None:
        self.nodes[number] = Node.objects.create(hostname="here", pid=number).pk

    def take(self, who: str, what: str = "", *rest: str) -> None:
        given = dict(word.split("=") for word in rest if "=" in word)
        j = next((int(word[1:]) for word in rest if word in ("j0", "j1")), None)
        if who == "init":
            self.ids = [uuid.UUID(tasks.noop.delay(number).id) for number in range(2)]
        elif who in "ks":
            getattr(self, f"_{what}")(j, given)
        else:
            getattr(self, f"_{what}")(int(who), j, given, list(rest))

    # What a process does

    def _takes_id(self, w: int, j: Any, given: dict[str, str], rest: list[str]) -> None:
        self._new_node(int(rest[0]))

    def _claims(self, w: int, j: int | None, given: dict[str, str], rest: list[str]) -> None:
        self.make_due()
        wanted = [0, 1] if j is None else [j]
        node = self.nodes.setdefault(int(given["node"]), uuid.uuid4())
        if j is not None:
            Job.objects.filter(pk=self.ids[j]).update(rank=-5)
        got = self.sessions[w].do(lambda: claims.Claimer().claim("default", self.queue, node, len(wanted)))
        if j is not None:
            Job.objects.filter(pk=self.ids[j]).update(rank=0)
        if sorted(self.ids.index(job.pk) for job in got) != wanted:
            raise Differs(f"it claimed {[self.ids.index(job.pk) for job in got]}")
        if self.tokens.setdefault(int(given["token"]), got[0].token) != got[0].token:
            raise Differs("it has a token of its own")
        self.held[w] |= {self.ids.index(job.pk): job for job in got}

    def _renews(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        job = self.held[w][j]
        self.expect(self.sessions[w].do(lambda: claims.renew(job)), given["owned"] != "0")
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
        self.expect(session.do(lambda: transitions.succeed(job, None, 0.0)), is_owned)
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
            self.expect(session.do(lambda: transitions.succeed(job, None, 0.0)), True)
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
        self.expect(self._is_committed(w, j), True)
        del self.held[w][j]

    def _disbelieves(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self.expect(self._is_committed(w, j), False)

    def _reads_nothing(self, w: int, j: int, given: dict[str, str], rest: list[str]) -> None:
        self.expect(self._is_committed(w, j), False)

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
        self.expect(self.sessions[w].do(lambda: write(job, error)), given["owned"] == "1")

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
        self.expect(rescue._finish_all([run], "default", "rescued", rescue._lose(kind, "m")), 1)

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

    def compare(self, words: list[str]) -> None:
        self.make_due()
        for number, key in enumerate(self.ids):
            said = [int(word) for word in words[7 * number + 1 : 7 * number + 7]]
            if self._crashed:
                self._put_back(number, key, said)
            row = Job.objects.get(pk=key)
            token = said[2] if row.token == self._token(said[2]) else -1
            found = [STATES.get(row.state, 9), row.lease, token]
            found += [said[3] if row.node_id in (None, self.nodes.get(said[3])) else -1, row.node_losses]
            found.append(Effect.objects.filter(key=str(number)).count())
            if found[0] != 1:
                found[3] = said[3]
            # Where the model has one job, the other one had ended before.
            if found != said and said[:2] != [2, 0]:
                raise Differs(f"the row of job {number} is {found}")
        self._crashed = False

    def _token(self, said: int) -> int | None:
        """What the row has where the model says this."""
        token = self.tokens.get(said & ~RENEWED)
        return -token if token is not None and said & RENEWED else token

    def _put_back(self, number: int, key: uuid.UUID, said: list[int]) -> None:
        state = next(name for name, value in STATES.items() if value == said[0])
        finished = {"finished_at": transitions.now_plus(0) if said[0] == 2 else None}
        values = {"state": state, "lease": said[1], "token": self._token(said[2]), "node_losses": said[4], **finished}
        Job.objects.filter(pk=key).update(node=self.nodes.get(said[3]), **values)
        Effect.objects.filter(key=str(number)).delete()
        for _ in range(said[5]):
            Effect.objects.create(key=str(number))
