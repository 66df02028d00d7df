"""What every database can do. PostgreSQL, SQLite and extensions have subclasses for what they do differently."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import ProgrammingError, connections, transaction
from django.db.models import Exists, F, Q, QuerySet
from django.db.models.functions import Now

from jobs.models import CLAIMABLE, Cancellation, Job, Marker, Node, Pause, State
from jobs.models.columns import BY_ORDER, ORDER, POSITION, Part, named
from jobs.store import databases

RUNNING: dict[str, Any] = {
    "state": State.RUNNING,
    "lease": F("lease") + 1,
    "started_at": Now(),
    "limit_slot": None,
    "queue_slot": None,
}


#: "ORDER BY ... LIMIT 1" makes PostgreSQL read the index. EXISTS drops the order, and PostgreSQL then reads the whole
#: table if it expects many rows.
LOOK = """
SELECT {now},
       (SELECT run_at FROM jobs_job WHERE state = 'scheduled' AND run_at <= {now} {due} ORDER BY run_at LIMIT 1),
       (SELECT expires_at FROM jobs_job
        WHERE state IN ('scheduled', 'ready') AND expires_at IS NOT NULL AND expires_at <= {now} {late}
        ORDER BY expires_at LIMIT 1),
       EXISTS (SELECT 1 FROM jobs_cancellation),
       {ready}{more}
"""

#: Whether a job waits in a queue, read from the index that the claim uses.
READY = f"""(
    SELECT 1 FROM jobs_job WHERE state = 'ready' AND held IS NULL AND queue = %s
    AND NOT EXISTS (SELECT 1 FROM jobs_pause WHERE queue = %s)
    ORDER BY {BY_ORDER} LIMIT 1
) IS NOT NULL"""


#: Whether any job runs, read from the index of running jobs.
RUNS = "SELECT 1 FROM jobs_job WHERE state = 'running' ORDER BY node_id LIMIT 1"

#: How many queues one statement asks about, a column each: whether a job waits there.
COLUMNS = 500


#: A short look begins this many seconds before the last look: a job may be committed some time after it became due.
COMMITTED_WITHIN = 10.0


class Claim(NamedTuple):
    """What is claimed: up to ``limit`` ready jobs of one queue, for a node, with a token.

    It takes no job of the tasks ``without``, and if ``only`` is not empty, only jobs of those tasks.
    ``after`` is a position in the queue: it takes only jobs behind it.
    """

    queue: str
    node: uuid.UUID
    limit: int
    token: int
    without: Sequence[str] = ()
    after: tuple[Any, ...] = ()
    only: Sequence[str] = ()
    #: An extension that says which ready rows come first, instead of the queue's order: ``first`` or ``free``
    #: (under limits ``window`` or ``pick``).
    order: Any = None


class Since(NamedTuple):
    """Where a short look begins: no job before it is due, or has expired. None: at the start."""

    due: datetime.datetime | None = None
    late: datetime.datetime | None = None


class Seen(NamedTuple):
    """What the clock sees in a database."""

    now: Any
    #: When the first due job came due, and the first late one expired; None: no job did.
    due: Any
    late: Any
    is_asked: bool
    is_ready: bool
    #: The answers to what extensions ask.
    more: tuple[Any, ...]


def owned(job: Job) -> QuerySet[Job]:
    """The fence: the job's row, as long as it belongs to this run. A zombie (another run has the job) finds no row.

    The hot statements have it in their own SQL: ``SUCCEED`` and ``SUCCEED_ALL`` of PostgreSQL, ``_SUCCEED`` of SQLite,
    and extensions have theirs.
    """
    return Job.objects.using(job._state.db).filter(pk=job.pk, state=State.RUNNING, lease=job.lease, token=job.token)


def write_turn() -> AbstractContextManager[Any]:
    """A block in which this process may write, where there is one writer. An extension makes processes take turns."""
    return nullcontext()


class Store:
    #: SQL for "now", in the form in which a column stores it.
    now = "statement_timestamp()"

    #: NOTIFY and LISTEN reach other sessions. Without them workers look for new jobs.
    has_notify = False
    #: The database has one writer at a time: a body that runs keeps every other writer waiting.
    has_one_writer = False
    #: What a claim records of the server's session that serves it.
    session_id: Any = None
    #: A claim may begin behind the row claimed last, and so skip index entries that are not vacuumed yet.
    claims_after = False
    #: A statement may write in several tables at once (``WITH ... AS (UPDATE ...)``).
    writes_at_once = False
    #: An UPSERT may have a condition.
    compares = False
    #: An INSERT that meets a conflicting row locks that row until the end of the transaction.
    locks_what_it_meets = False
    #: The verb and the end of an INSERT that does nothing if the row exists already.
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
        """Called when a connection was opened, in any process."""

    # Which database it is

    @property
    def name(self) -> str:
        return str(self.connection.vendor)

    def complete_schema(self, models: Iterable[Any]) -> None:
        """Make the indexes and constraints that Django leaves out on this database."""

    # A call

    def insert(self, job: Job, columns: tuple[str, ...], is_frozen: bool) -> int:
        """Insert the columns that a call set; the database fills in the rest. Returns the number of inserted rows.

        Parameters:
            is_frozen: a row with this id may exist already. Then no row is inserted.
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

    #: Quotes column names that are SQL keywords.
    quote: Callable[[str], str] = str

    def insert_all(self, jobs: Sequence[Job], said: Sequence[Mapping[str, Any]] | None) -> None:
        """Insert several jobs.

        Parameters:
            said: the columns that each call set. None: the database computes some of them, or the states differ.
        """
        Job.objects.using(self.using).bulk_create(jobs, batch_size=self.batch_size)

    #: How many rows one INSERT takes; None: Django decides.
    batch_size: int | None = None

    def parts(self, table: str) -> list[str]:
        """The tables that hold the rows of a table, and its indexes and constraints."""
        return [table]

    #: Whether ended jobs are stored apart from live ones, and are deleted together with all jobs of their day.
    is_divided: Any = False

    def withdraw(self, key: uuid.UUID) -> bool:
        """Delete the job just inserted if an ended job has the same id. False: here the INSERT itself prevents that."""
        return False

    def among(self, column: str, ids: Collection[Any]) -> Any:
        """The condition that a column has one of these values."""
        return Q(**{f"{column}__in": ids})

    def free_unique_keys(self, ids: Sequence[uuid.UUID], is_over: Q) -> None:
        """Remove the unique keys of these jobs, if the condition is still true of them."""
        Job.objects.using(self.using).filter(is_over, pk__in=ids).update(unique_key=None)

    def notify(self, channel: str, payloads: Sequence[str]) -> None:
        """Notify all sessions that listen to a channel."""

    # A claim

    def ready(self, claim: Claim) -> QuerySet[Job]:
        """The jobs that the claim may take, in the order of the queue."""
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

        Race: several processes look at the same row. One gets it; the rest skip the locked row, and do not wait.
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
        """The transaction of a claim that takes several statements."""
        return transaction.atomic(using=self.using)

    @property
    def running(self) -> dict[str, Any]:
        """What a claim writes, in addition to the node and the token."""
        return {**RUNNING, "backend": self.session_id}

    def claimed(self, rows: Iterable[Sequence[Any]]) -> list[Job]:
        """The jobs of the rows that a claim returned, in the order of the queue."""
        names, jobs = named(Part.CLAIM), []
        for row in rows:
            values = dict(zip(names, row, strict=True))
            for name, decode in self.decoders().items():
                if values[name] is not None:
                    values[name] = decode(values[name])
            values["options"] = values["options"] or {}
            jobs.append(Job.of(values, self.using))
        return sorted(jobs, key=POSITION)

    #: Converters for the columns that a claim reads, where the database returns another type.
    decoders: Callable[[], Mapping[str, Callable[[Any], Any]]] = dict

    def renew(self, job: Job, token: int) -> bool:
        """Give a claimed row another token; False: the job was given back meanwhile."""
        return owned(job).update(token=token, started_at=Now()) == 1

    # A run

    def prepare_body(self) -> None:
        """Called before a body runs, in its transaction if it has one."""

    def validate(self) -> None:
        """Called after a body: raise if what it did is not, as a whole, in the transaction that began before it."""
        self.connection.validate_no_broken_transaction()
        if self.has_ended():
            raise ProgrammingError(
                "the body ended its transaction itself (COMMIT or ROLLBACK): what it did before that is committed "
                "already, or lost; declare the task with atomic=False if it manages its transactions itself"
            )

    def has_ended(self) -> bool:
        """Whether the body's transaction ended, and perhaps another one began, as far as the driver tells."""
        return False

    def write_mutex(self) -> AbstractContextManager[Any]:
        """A block in which this process may write."""
        return nullcontext()

    def succeed(self, job: Job, result: Any, runtime: float, is_synced: bool = True) -> bool:
        """Complete a run as the last statement of its transaction; False: it lost its lease, or was asked to end.

        Parameters:
            is_synced: the commit waits for the disk. Else it need not, if the database lets a transaction choose.
        """
        return self.succeed_as(job, result, None)

    def succeed_all(self, done: Sequence[tuple[Job, Any, float]], is_synced: bool) -> bool:
        """The same for several runs (job, result, runtime), at the end of their transaction; False: not for all."""
        return all(self.succeed(*each) for each in done)

    def succeed_as(self, job: Job, result: Any, source: Job | None) -> bool:
        """The same for a run whose work another job had done before."""
        ours = owned(job).filter(~Exists(Cancellation.objects.using(self.using).filter(pk=job.pk)))
        values = {"state": State.SUCCEEDED, "finished_at": Now(), "result": result, "error": None}
        return ours.update(**values, **({"replay_of": source.pk} if source else {})) == 1

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """A savepoint that limits how long a statement waits for another transaction, if the database can limit it."""
        with transaction.atomic(using=self.using):
            yield

    def end_if_idle(self, seconds: float) -> None:
        """Let the server end this transaction, and release its locks, if its process is idle in it for so long."""

    # Markers, and names

    def insert_marker(
        self, key: str, kind: str, fingerprint: str, job: uuid.UUID | None, keep: float | None, wait: float
    ) -> bool:
        """Insert a marker in the current transaction; False: it is there already. Waits for an uncommitted one.

        Parameters:
            keep: seconds until it is void; None: for ever.
            wait: seconds to wait for another transaction, if the database can limit it.
        """
        expires_at = None if keep is None else Now() + datetime.timedelta(seconds=keep)
        values = {"fingerprint": fingerprint, "job": job, "created_at": Now(), "expires_at": expires_at}
        rows = Marker.objects.using(self.using)
        return rows.get_or_create(key=key, kind=kind, defaults=values)[1]

    def lock_names(self, names: Collection[str]) -> None:
        """Lock these names until this transaction ends. It does nothing where the database has one writer."""

    # The clock

    #: Whether a job waits in a queue.
    ready_sql = READY

    def look(self, queues: Sequence[str], more: Iterable[str], since: Since | None = None) -> Seen:
        """Ask in one statement what there is to do: mostly nothing.

        Parameters:
            more: what extensions ask.
            since: a short look, which begins where the last one ended.
        """
        sql, names = self._look_sql(queues, more, since)
        now, due, late, is_asked, is_ready, *rest = self.ask(sql, *names)[0]
        return Seen(now, due, late, is_asked, is_ready, tuple(rest))

    def _look_sql(self, queues: Sequence[str], more: Iterable[str], since: Since | None) -> tuple[str, list[Any]]:
        words = {"now": self.now, "epoch": self.epoch, "rare": "1 = 1" if since is None else "1 = 0"}
        words["due"] = f"AND run_at >= '{since.due}'" if since and since.due else ""
        words["late"] = f"AND expires_at >= '{since.late}'" if since and since.late else ""
        asked = "".join(f", (SELECT 1 FROM {rows.format(**words)} LIMIT 1) IS NOT NULL" for rows in more)
        sql, names = self._ready(queues, is_short=since is not None)
        return LOOK.format(**words, ready=sql, more=asked), names

    def has_running(self) -> bool:
        """Whether any job runs, on any node."""
        return bool(self.ask(RUNS))

    def has_ready(self, queues: Sequence[str], is_short: bool = False) -> bool:
        """Whether a job waits in one of the queues."""
        sql, names = self._ready(queues, is_short)
        return bool(queues) and bool(self.ask(f"SELECT {sql}", *names)[0][0])

    def with_ready(self, queues: Sequence[str]) -> list[str]:
        """The queues, of those given, in which a job waits."""
        return self.of_queues(self.ready_sql, queues)

    def of_queues(self, sql: str, queues: Sequence[str]) -> list[str]:
        """The queues for which ``sql`` is true. It takes few statements, even for many queues.

        Parameters:
            sql: a column expression, with ``%s`` for the name of the queue.
        """
        found: list[str] = []
        for part in (queues[start : start + COLUMNS] for start in range(0, len(queues), COLUMNS)):
            names = [queue for queue in part for _ in range(sql.count("%s"))]
            [row] = self.ask(f"SELECT {', '.join([sql] * len(part))}", *names)
            found += [queue for queue, is_true in zip(part, row, strict=True) if is_true]
        return found

    def _ready(self, queues: Sequence[str], is_short: bool) -> tuple[str, list[Any]]:
        """SQL, and its values: whether a job waits in one of the queues, or (short) was added there a moment ago."""
        names = [name for queue in queues for name in (queue, queue)]
        return " OR ".join([self.ready_sql] * len(queues)) or "1 = 0", names
