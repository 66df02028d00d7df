"""What every database can do. The classes of PostgreSQL and SQLite, and of extensions, say what each does otherwise."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now

from jobs.models import AWAITING, CLAIMABLE, Cancellation, Job, Marker, Node, Pause, State
from jobs.models.columns import BY_ORDER, ORDER, POSITION, Part, named
from jobs.store import databases

RUNNING: dict[str, Any] = {
    "state": State.RUNNING,
    "lease": F("lease") + 1,
    "started_at": Now(),
    "limit_slot": None,
    "queue_slot": None,
}


#: "ORDER BY ... LIMIT 1" makes PostgreSQL read by the index: for EXISTS, which drops the order, it reads the table
#: where it expects many rows.
LOOK = """
SELECT {now},
       (SELECT run_at FROM jobs_job WHERE state = 'scheduled' AND run_at <= {now} {due} ORDER BY run_at LIMIT 1),
       (SELECT expires_at FROM jobs_job
        WHERE state IN ('scheduled', 'ready') AND expires_at IS NOT NULL AND expires_at <= {now} {late}
        ORDER BY expires_at LIMIT 1),
       EXISTS (SELECT 1 FROM jobs_cancellation),
       {rare} AND (
           SELECT 1 FROM jobs_job WHERE state = 'scheduled' AND run_at > '9000-06-01' ORDER BY run_at LIMIT 1
       ) IS NOT NULL,
       {ready}{more}
"""

#: Whether a job waits in a queue, read by the index that the claim uses.
READY = f"""(
    SELECT 1 FROM jobs_job WHERE state = 'ready' AND held IS NULL AND queue = %s
    AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = %s)
    ORDER BY {BY_ORDER} LIMIT 1
) IS NOT NULL"""


#: Whether a job runs, read by the index of those.
RUNS = "SELECT 1 FROM jobs_job WHERE state = 'running' ORDER BY node_id LIMIT 1"

#: Of so many queues one statement asks whether a job waits there, a column each.
COLUMNS = 500


#: A short look begins so many seconds before the last one: a job is seen when it is committed, and is due before that.
COMMITTED_WITHIN = 10.0


class Claim(NamedTuple):
    """What is claimed: up to ``limit`` ready jobs of one queue, for a node, with a token.

    Jobs of the tasks ``without`` stay where they are; so do, if there are tasks ``only``, those of all others.
    ``after`` is a position in the queue: only what stands behind it.
    """

    queue: str
    node: uuid.UUID
    limit: int
    token: int
    without: Sequence[str] = ()
    after: tuple[Any, ...] = ()
    only: Sequence[str] = ()
    #: An extension that says which ready rows come first, in place of the order of the queue: ``first`` or ``free``.
    order: Any = None


class Since(NamedTuple):
    """Where a short look begins: nothing before is due, or expired; None: from the start."""

    due: datetime.datetime | None = None
    late: datetime.datetime | None = None


class Seen(NamedTuple):
    """What the clock sees in a database."""

    now: Any
    #: When the first job is due, or expired; None: none is.
    due: Any
    late: Any
    is_asked: bool
    is_parked: bool
    is_ready: bool
    #: The answers to what extensions ask.
    more: tuple[Any, ...]


def owned(job: Job) -> QuerySet[Job]:
    """The fence: the job's row, as long as it is this run's. A zombie, whose job was given to another, finds none.

    The hot statements have it in their own SQL: ``SUCCEED`` and ``SUCCEED_ALL`` of PostgreSQL, ``_SUCCEED`` of SQLite.
    """
    return Job.objects.using(job._state.db).filter(pk=job.pk, state=State.RUNNING, lease=job.lease, token=job.token)


class Store:
    #: SQL for "now", as a column holds it.
    now = "statement_timestamp()"

    #: NOTIFY and LISTEN reach other sessions. Without them workers look for new jobs.
    has_notify = False
    #: All writers of the database take turns, so that a body keeps every other one from writing.
    has_one_writer = False
    #: A session of the server may be ended from another one.
    has_sessions = False
    #: What a claim records of the server's session that serves it.
    session_id: Any = None
    #: A claim may begin behind the last one, and pass over what is not vacuumed yet.
    claims_after = False
    #: A statement may write in several tables at once (``WITH ... AS (UPDATE ...)``).
    writes_at_once = False
    #: An UPSERT may have a condition.
    compares = False
    #: An INSERT that finds another row in its place locks that one until the end of the transaction.
    locks_what_it_meets = False
    #: The verb of an INSERT, and its end, that do nothing if the row is there.
    ignoring = ("INSERT", "")

    def __init__(self, using: str) -> None:
        self.using = using

    @property
    def connection(self) -> Any:
        return connections[self.using]

    @property
    def epoch(self) -> str:
        """SQL for "now" in seconds since 1970."""
        return databases.EPOCH_NOW[self.connection.vendor]

    def ask(self, sql: str, *params: Any) -> list[Any]:
        return databases.ask(self.using, sql, *params)

    def prepare(self, connection: Any) -> None:
        """A connection was opened, in whatever process."""

    # Which database it is

    def identify(self) -> tuple[Any, ...]:
        """What tells this database from a copy of it."""
        settings = self.connection.settings_dict
        return (settings["HOST"] or "localhost", settings["NAME"])

    def complete_schema(self, models: Iterable[Any]) -> None:
        """Make the indexes and constraints that Django leaves out on this database."""

    def reads_committed(self, level: Any) -> bool:
        """Whether an ``isolation_level`` of the settings is READ COMMITTED; None: it is not said there."""
        return True

    # A call

    def insert(self, job: Job, columns: tuple[str, ...], is_frozen: bool) -> int:
        """Insert the columns that a call said; the database makes the rest. Returns how many rows that made.

        Parameters:
            is_frozen: there may be a row of its id. Then none is made.
        """
        fields: dict[str, Any] = {name: Job._meta.get_field(name) for name in columns}
        values = [field.get_db_prep_save(job.__dict__[name], self.connection) for name, field in fields.items()]
        with self.connection.cursor() as cursor:
            cursor.execute(self.insert_sql(columns, is_frozen), values)
            done: int = cursor.rowcount
        return done

    @lru_cache(maxsize=500)  # noqa: B019
    def insert_sql(self, columns: tuple[str, ...], is_frozen: bool) -> str:
        verb, end = self.ignoring if is_frozen else ("INSERT", "")
        names, marks = ", ".join(map(self.quote, columns)), ", ".join(["%s"] * len(columns))
        return f"{verb} INTO jobs_job ({names}) VALUES ({marks}){end}"

    #: Quotes the names of columns that are words of SQL.
    quote: Callable[[str], str] = str

    def insert_all(self, jobs: Sequence[Job], said: Sequence[Mapping[str, Any]] | None) -> None:
        """Insert several jobs.

        Parameters:
            said: what each call said; None: some of it is computed by the database, or differs in its state.
        """
        Job.objects.using(self.using).bulk_create(jobs, batch_size=self.batch_size)

    #: How many rows one INSERT takes; None: Django knows.
    batch_size: int | None = None

    def parts(self, table: str) -> list[str]:
        """The tables that hold the rows of a table, and its indexes and constraints."""
        return [table]

    #: Whether what ended is apart from what lives, and goes with the other jobs of its day.
    is_divided: Any = False

    def withdraw(self, key: uuid.UUID) -> bool:
        """Take back the job that was just inserted, if one of its id has ended; False: no INSERT lets that happen."""
        return False

    #: How many batches (``BATCH``) of old rows go in one statement.
    old_batches = 1

    def among(self, column: str, ids: Collection[Any]) -> Any:
        """The condition that a column is one of these."""
        return Q(**{f"{column}__in": ids})

    def free_unique_keys(self, ids: Sequence[uuid.UUID], is_over: Q) -> None:
        """These jobs go on without their unique keys, if the condition is still true of them."""
        Job.objects.using(self.using).filter(is_over, pk__in=ids).update(unique_key=None)

    def notify(self, channel: str, payloads: Sequence[str]) -> None:
        """Tell all sessions that listen to a channel."""

    # A claim

    def ready(self, claim: Claim) -> QuerySet[Job]:
        """What it may claim, in the order of the queue."""
        using = self.using
        return (
            Job.objects.using(using)
            .filter(
                CLAIMABLE,
                Q(expires_at=None) | Q(expires_at__gt=Now()),
                Exists(Node.objects.using(using).filter(pk=claim.node, dead_at=None)),
                ~Exists(Pause.objects.using(using).filter(pk=claim.queue)),
                Q(task__in=claim.only) if claim.only else Q(),
                queue=claim.queue,
            )
            .exclude(task__in=claim.without)
            .order_by(*ORDER)
        )

    def claim(self, claim: Claim) -> list[Job]:
        """Move ready jobs to ``running``, with the next lease; returns them in the order of the queue.

        Race: of several processes that look at the same row, one gets it, and none waits: locked rows are skipped.
        """
        first = self.ready(claim)
        # Without any lock: most looks find nothing.
        if not first.values_list("pk")[:1]:
            return []
        with self.claiming():
            if claim.order is None:
                ids = list(databases.free(first).values_list("pk", flat=True)[: claim.limit])
            else:
                ids = claim.order.free(first)[: claim.limit]
            rows = Job.objects.using(self.using).filter(pk__in=ids)
            rows.update(node=claim.node, token=claim.token, **self.running)
            return list(rows.order_by(*ORDER))

    def claiming(self) -> AbstractContextManager[Any]:
        """The transaction of a claim of several statements."""
        return transaction.atomic(using=self.using)

    @property
    def running(self) -> dict[str, Any]:
        """What a claim writes, beside the node and the token."""
        return {**RUNNING, "backend": self.session_id}

    def claimed(self, rows: Iterable[Sequence[Any]]) -> list[Job]:
        """The jobs of the rows that a claim returned, in the order of the queue."""
        names, jobs = named(Part.CLAIM), []
        for row in rows:
            values = dict(zip(names, row, strict=True))
            for name, decode in self.decoders().items():
                if values[name] is not None:
                    values[name] = decode(values[name])
            values["options"] = json.loads(values["options"]) if values["options"] else {}
            jobs.append(Job.of(values, self.using))
        return sorted(jobs, key=POSITION)

    #: What makes a value of each column that a claim reads, where the database gives another type.
    decoders: Callable[[], Mapping[str, Callable[[Any], Any]]] = dict

    def renew(self, job: Job, token: int) -> bool:
        """Give a claimed row another token; False: it was given back meanwhile."""
        return owned(job).update(token=token, started_at=Now()) == 1

    def wake(self, what: str, columns: Mapping[str, Any], told: tuple[str, str] | None) -> str | None:
        """Let the first job that waits for this wait for its turn (``columns``); its queue, or None: none was.

        Parameters:
            told: a channel, and what is told there behind the name of the queue, by the same statement.
        """
        rows = Job.objects.using(self.using).filter(AWAITING, waits_for=what)
        found = rows.order_by("waits_for", "pk").values_list("pk", "queue").first()
        return found[1] if found and rows.filter(pk=found[0]).update(**columns) else None

    # A run

    def prepare_body(self) -> None:
        """A body comes next, in its transaction if it has one."""

    def write_mutex(self) -> AbstractContextManager[Any]:
        """The time in which this process may write."""
        return nullcontext()

    def succeed(self, job: Job, result: Any, runtime: float, is_synced: bool = True) -> bool:
        """Complete a run as the last statement of its transaction; False: it lost its lease, or was asked to end.

        Parameters:
            is_synced: the commit waits for the disk; else it need not, where a transaction may say that.
        """
        return self.succeed_as(job, result, None)

    def succeed_all(self, done: Sequence[tuple[Job, Any, float]], is_synced: bool) -> bool:
        """The same of several runs (job, result, runtime), at the end of their transaction; False: not of all."""
        return all(self.succeed(*each) for each in done)

    def succeed_as(self, job: Job, result: Any, source: Job | None) -> bool:
        """The same of a run whose work another job had done before."""
        ours = owned(job).filter(~Exists(Cancellation.objects.using(self.using).filter(pk=job.pk)))
        values = {"state": State.SUCCEEDED, "finished_at": Now(), "result": result, "error": None}
        return ours.update(**values, **({"replay_of": source.pk} if source else {})) == 1

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """A savepoint in which nothing waits much longer than that for another transaction, where that can be said."""
        with transaction.atomic(using=self.using):
            yield

    def end_if_idle(self, seconds: float) -> None:
        """Let the server end this transaction, and with it its locks, if its process stands still in it."""

    # Markers and guards

    def insert_marker(
        self, key: str, kind: str, fingerprint: str, job: uuid.UUID | None, keep: float | None, wait: float
    ) -> bool:
        """Leave a marker in the current transaction; False: there is one. It waits for one that is not committed.

        Parameters:
            keep: seconds until it is void; None: for ever.
            wait: seconds to wait for another transaction, where that can be said.
        """
        expires_at = None if keep is None else Now() + datetime.timedelta(seconds=keep)
        values = {"fingerprint": fingerprint, "job": job, "created_at": Now(), "expires_at": expires_at}
        rows = Marker.objects.using(self.using)
        return rows.get_or_create(key=key, kind=kind, defaults=values)[1]

    def lock_writer(self, model: Any) -> None:
        """Where rows have no locks: take that of the whole database."""

    def lock_names(self, names: Collection[str]) -> None:
        """Wait until no other transaction has locked one of these names; they are locked until this one ends.

        Nothing where there is one writer.
        """

    # The clock

    #: Whether a job waits in a queue.
    ready_sql = READY

    def look(self, queues: Sequence[str], more: Iterable[str], since: Since | None = None) -> Seen:
        """What there is to do, in one statement: mostly nothing.

        Parameters:
            more: what extensions ask.
            since: a short look, which begins where the last one ended.
        """
        sql, names = self._look_sql(queues, more, since)
        now, due, late, is_asked, is_parked, is_ready, *rest = self.ask(sql, *names)[0]
        return Seen(now, due, late, is_asked, is_parked, is_ready, tuple(rest))

    def _look_sql(self, queues: Sequence[str], more: Iterable[str], since: Since | None) -> tuple[str, list[Any]]:
        words = {"now": self.now, "epoch": self.epoch, "rare": "1 = 1" if since is None else "1 = 0"}
        words["due"] = f"AND run_at >= '{since.due}'" if since and since.due else ""
        words["late"] = f"AND expires_at >= '{since.late}'" if since and since.late else ""
        asked = "".join(f", (SELECT 1 FROM {rows.format(**words)} LIMIT 1) IS NOT NULL" for rows in more)
        sql, names = self._ready(queues, is_short=since is not None)
        return LOOK.format(**words, ready=sql, more=asked), names

    def has_running(self) -> bool:
        """Whether any job runs, on whatever node."""
        return bool(self.ask(RUNS))

    def has_ready(self, queues: Sequence[str], is_short: bool = False) -> bool:
        """Whether a job waits in one of the queues."""
        sql, names = self._ready(queues, is_short)
        return bool(queues) and bool(self.ask(f"SELECT {sql}", *names)[0][0])

    def with_ready(self, queues: Sequence[str]) -> list[str]:
        """Those of the queues in which a job waits."""
        return self.of_queues(self.ready_sql, queues)

    def of_queues(self, sql: str, queues: Sequence[str]) -> list[str]:
        """Those of the queues of which this is true. A few statements, however many queues there are.

        Parameters:
            sql: a column, with ``%s`` wherever the name of the queue is to stand.
        """
        found: list[str] = []
        for part in (queues[start : start + COLUMNS] for start in range(0, len(queues), COLUMNS)):
            names = [queue for queue in part for _ in range(sql.count("%s"))]
            [row] = self.ask(f"SELECT {', '.join([sql] * len(part))}", *names)
            found += [queue for queue, is_true in zip(part, row, strict=True) if is_true]
        return found

    def _ready(self, queues: Sequence[str], is_short: bool) -> tuple[str, list[Any]]:
        """SQL that says whether one waits in one of the queues, or (short) came there a moment ago; and its values."""
        names = [name for queue in queues for name in (queue, queue)]
        return " OR ".join([self.ready_sql] * len(queues)) or "1 = 0", names

    # What people see

    def by_index(self, rows: QuerySet[Job], states: Collection[str]) -> QuerySet[Job]:
        """The jobs of these states, said so that the database takes its index for them."""
        return rows

    # Sessions of the server

    @property
    def name(self) -> str:
        return str(self.connection.vendor)

    def sessions(self, question: str, value: Any) -> list[tuple[int, str, str, float]]:
        """Who is in somebody's way, where the server says so: session, application, its state, seconds it has lasted.

        Parameters:
            question: who ``locks`` the row of this job; who ``blocks`` this session; what is ``old``, in seconds.
        """
        return []

    @property
    def may_write(self) -> bool:
        """Whether somebody else than the body that runs could write now."""
        return True

    def end_sessions(self, runs: Sequence[tuple[uuid.UUID, int]]) -> tuple[list[uuid.UUID], set[tuple[str, str]]]:
        """End the server's sessions of runs (job and lease) that are over. The job may have another run by now.

        Returns:
            The jobs whose session was ended; and of each that may not be ended this process's role and that one's.
        """
        return [], set()

    @contextmanager
    def watched(self, job: Job, seconds: float) -> Iterator[list[Any]]:
        """Not empty if the block waits, after so many seconds, for the run: it is paused before its commit, say.

        Else the run's connection may be at another job of the same claim, which has nothing to do with this one.
        """
        yield []
