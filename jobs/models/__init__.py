"""The tables of the core: ``Job`` and its related tables.

Their names are fixed, so that a project may give the app another label.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.base import ModelState
from django.db.models.functions import Now
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from jobs import extensions
from jobs.models import columns
from jobs.models.columns import ORDER
from jobs.models.fields import Completed, JSONText, Sparse, Typed, Word, time_of, uuid7


class State(models.TextChoices):
    SCHEDULED = "scheduled", _("scheduled")
    READY = "ready", _("ready")
    RUNNING = "running", _("running")
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


WAITING = (State.SCHEDULED, State.READY)
#: The states of jobs that have not ended.
LIVE = (*WAITING, State.RUNNING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
#: As plain values, for the condition of an index.
UNSUCCESSFUL = ("failed", "cancelled")


class Node(models.Model):
    """One start of a worker. A restarted worker is another node: a hostname does not identify a node."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    #: As Celery names the worker: ``bulk@web1``.
    hostname = models.CharField(_("name"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))
    queues = models.JSONField(_("queues"), default=list)
    tasks = models.JSONField(_("tasks"), default=list)
    #: The version of this app.
    version = models.CharField(_("version"), max_length=32, null=True)
    #: As Celery's ``--pool`` and ``--concurrency``.
    pool = models.CharField(_("pool"), max_length=64, null=True)
    concurrency = models.PositiveIntegerField(_("concurrency"), null=True)
    started_at = models.DateTimeField(_("started at"), default=Now)
    #: Since then it is told to stop, and claims no more jobs.
    stopping_at = models.DateTimeField(_("stopping since"), null=True)
    #: Set once, by itself or by the first process that finds it dead. A node that was only paused takes a new id.
    dead_at = models.DateTimeField(_("dead at"), null=True)
    #: It stopped in good order, and declared itself dead.
    signed_off = models.BooleanField(_("signed off"), default=False)
    #: When a person saw that it died; until then the dashboard says so.
    seen_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "jobs_node"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions: ClassVar = [("control_node", _("Can quiet and stop workers"))]

    def __str__(self) -> str:
        return f"{self.hostname} ({str(self.id)[:8]})"

    @property
    def host(self) -> str:
        """The machine, without the worker's name on it."""
        return self.hostname.rpartition("@")[2]


class Heartbeat(models.Model):
    """A node's heartbeat. It is no column of :class:`Node`, because on SQLite it lives in the second file."""

    is_beside = True

    node = models.UUIDField(primary_key=True)
    #: Rescue checks, by its own clock, whether it grows.
    count = models.BigIntegerField(default=0)
    #: For people: seconds since 1970 by the database's clock.
    at = models.FloatField(default=0)

    class Meta:
        db_table = "jobs_heartbeat"


#: Implementations of methods here, by name. Packages that import this one set them; the app imports those packages.
above: dict[str, Callable[..., Any]] = {}

#: The jobs that hold their unique key.
UNIQUE = Q(unique_key__isnull=False) & (
    Q(state__in=("scheduled", "ready")) | Q(state="running", unique_until="finished")
)
EXPIRING = Q(state__in=("scheduled", "ready"), expires_at__isnull=False)
CLAIMABLE, HELD = Q(state="ready", held__isnull=True), Q(state="ready", held__isnull=False)
LINED = Q(state="ready", limit_key__isnull=False)
WITH_SLOT = Q(state="running", limit_slot__isnull=False)
SEATED = Q(state="running", queue_slot__isnull=False)
AWAITING = Q(state="scheduled", waits_for__isnull=False)
HAS_OWNER = Q(node__isnull=False, token__isnull=False, started_at__isnull=False)
FINISHED = Q(state__in=ENDED, finished_at__isnull=False) | (~Q(state__in=ENDED) & Q(finished_at__isnull=True))


class Job(Completed):
    """One call of a task, from the commit that made it to its end. Columns that most calls do not need are NULL."""

    State = State

    #: Sorts by time if this app made it (UUID version 7). It is the Celery task id.
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    task = models.CharField(_("task"), max_length=255)
    args = JSONText(_("arguments"), default=list, db_default=[])
    kwargs = JSONText(_("keyword arguments"), default=dict, db_default={})
    #: What else the call said (``jobs.calling.request``): headers, links, limits, ...
    options = Sparse(_("options"), default=dict, null=True)
    queue = models.CharField(_("queue"), max_length=255)
    #: As it was given.
    priority = models.SmallIntegerField(_("priority"), null=True)
    #: The priority as the claim sorts it: the smallest first, also where the broker takes the largest first.
    rank = models.SmallIntegerField(default=0, db_default=0)
    state = Word(_("state"), max_length=16, choices=State.choices, default=State.READY, db_default=State.READY)
    run_at = models.DateTimeField(_("run at"), default=Now, db_default=Now())
    expires_at = models.DateTimeField(_("expires at"), null=True)
    #: When it was called, if its id does not tell. Read ``created_at`` instead.
    made_at = models.DateTimeField(null=True)
    #: Grows with every claim. Lease and token fence every finish (Kleppmann, "How to do distributed locking").
    lease = models.IntegerField(_("times claimed"), default=0, db_default=0)
    #: New with every claim. If a crash of the database loses a claim, the next claim has the same lease again.
    token = models.BigIntegerField(_("claim token"), null=True)
    #: The node that runs it, or ran it last. It has no constraint, so a claim locks no node, and prune scans no jobs.
    node = models.ForeignKey(
        Node, models.DO_NOTHING, "jobs", null=True, db_constraint=False, db_index=False, verbose_name=_("worker")
    )
    #: The PostgreSQL server process of the run, so that rescue can end a zombie's; None behind a pooler.
    backend = models.IntegerField(_("database process"), null=True)
    retries = models.IntegerField(_("retries"), default=0, db_default=0)
    crashes = models.IntegerField(_("crashes"), default=0, db_default=0)
    node_losses = models.IntegerField(_("node losses"), default=0, db_default=0)
    snoozes = models.IntegerField(_("snoozes"), default=0, db_default=0)
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    result = JSONText(_("result"), null=True)
    error = models.JSONField(_("error"), null=True)
    errors = Sparse(_("errors"), default=list, null=True)
    parent_id = models.UUIDField(_("parent"), null=True)
    #: The first job of a chain of calls; None if that is the job itself. Read ``root_id`` instead.
    root = models.UUIDField(_("root"), null=True)
    #: The key of the marker that the run leaves (``idempotency_key=``); None without one.
    marker_key = models.CharField(_("idempotency key"), max_length=255, null=True)
    #: The job whose result this one replayed, because that job had left the marker before.
    replay_of = models.UUIDField(_("replay of"), null=True)
    #: At most one job with this key waits (``unique=``); with ``unique_until="finished"``, waits or runs.
    unique_key = models.CharField(_("unique key"), max_length=255, null=True)
    unique_until = models.CharField(_("unique until"), max_length=8, null=True)
    #: From then on the key is free, whatever the job's state is (``unique_for=``).
    unique_expires_at = models.DateTimeField(_("unique until time"), null=True)
    #: Where the next run of a long body continues (:meth:`save_cursor`); None: at the beginning.
    cursor = Typed(_("cursor"), null=True)
    #: Jobs with the same text share the limits of their task (``concurrency=``, ``rate=``, ``limit_key=``).
    limit_key = models.CharField(_("limit"), max_length=255, null=True)
    #: Its limit is reached: claims leave it out until the limit admits it.
    held = models.BooleanField(_("held back"), null=True)
    #: While it runs: its slot numbers in its limit and in its queue. No two runs have the same slot.
    limit_slot = models.SmallIntegerField(null=True)
    queue_slot = models.SmallIntegerField(null=True)
    #: Of a scheduled job: what it waits for besides its time: a lock, or a worker that knows its task
    #: (``lock:KEY``, ``task:NAME``). In other states it has no meaning.
    waits_for = models.CharField(max_length=300, null=True)
    #: Whether an extension wants to be told when the call is committed.
    is_awaited = False
    #: Whether the call is of a signature whose id was fixed before (``Signature.freeze``).
    is_frozen = False
    #: Whether the caller chose the id.
    is_given = False

    class Meta:
        db_table = "jobs_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions: ClassVar = [
            ("retry_job", _("Can retry jobs, and run them now")),
            ("cancel_job", _("Can cancel jobs")),
            ("kill_job", _("Can kill running jobs")),
            ("decrypt_job", _("Can read encrypted arguments")),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(name="jobs_job_state", condition=Q(state__in=State.values)),
            models.CheckConstraint(name="jobs_job_owner", condition=~Q(state="running") | HAS_OWNER),
            models.CheckConstraint(name="jobs_job_ended", condition=FINISHED),
            models.CheckConstraint(name="jobs_job_failed", condition=~Q(state="failed") | Q(error__isnull=False)),
            # Refuses a second waiting job with the same key. PostgreSQL names the constraint in its error.
            models.UniqueConstraint(name="jobs_job_unique", fields=["unique_key"], condition=UNIQUE),
            # These two enforce limits on what runs at once. A slot is free when its run is over, whatever ended it.
            models.UniqueConstraint(
                name="jobs_job_limit_slot", fields=["limit_key", "limit_slot"], condition=WITH_SLOT
            ),
            models.UniqueConstraint(name="jobs_job_queue_slot", fields=["queue", "queue_slot"], condition=SEATED),
        ]
        indexes: ClassVar = [
            # The indexes of hot queries have live states only, so that history costs disk space and not speed.
            models.Index(name="jobs_job_scheduled", fields=["run_at"], condition=Q(state="scheduled")),
            # The order in which jobs are claimed.
            models.Index(name="jobs_job_ready", fields=["queue", *ORDER], condition=CLAIMABLE),
            # The order in which a limit admits its jobs.
            models.Index(name="jobs_job_line", fields=["limit_key", "queue", *ORDER], condition=LINED),
            models.Index(name="jobs_job_held", fields=["queue", "id"], condition=HELD),
            models.Index(name="jobs_job_expires", fields=["expires_at"], condition=EXPIRING),
            models.Index(name="jobs_job_running", fields=["node"], condition=Q(state="running")),
            # Ended jobs by their end, for people and prune. The primary key has the order of creation.
            models.Index(name="jobs_job_finished", fields=["finished_at"], condition=Q(finished_at__isnull=False)),
            # For people who search a long history. Each index has only the jobs with a value.
            models.Index(name="jobs_job_unsuccessful", fields=["id"], condition=Q(state__in=UNSUCCESSFUL)),
            models.Index(name="jobs_job_made", fields=["made_at"], condition=Q(made_at__isnull=False)),
            models.Index(name="jobs_job_marker_key", fields=["marker_key"], condition=Q(marker_key__isnull=False)),
            models.Index(name="jobs_job_unique_key", fields=["unique_key"], condition=Q(unique_key__isnull=False)),
            models.Index(name="jobs_job_awaiting", fields=["waits_for", "id"], condition=AWAITING),
            models.Index(name="jobs_job_parent", fields=["parent_id", "id"], condition=Q(parent_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.task}[{self.id}]"

    def refresh_from_db(self, using: str | None = None, *args: Any, **kwargs: Any) -> None:
        """From the job's own database: a project's routers may send reads to a replica, which lags behind."""
        super().refresh_from_db(using or self._state.db, *args, **kwargs)

    @classmethod
    def of(cls, values: dict[str, Any], using: str | None = None) -> Job:
        """A new job, as ``Job(**values)`` makes it, at a fifth of the cost and without Django's signals.

        With ``using`` it is a row that a claim returned. Other fields are read when code accesses them.
        """
        job, state = cls.__new__(cls), ModelState()
        if using is None:
            job.__dict__ = {**_DEFAULTS, "options": {}, "errors": [], **values, "_state": state}
        else:
            state.adding, state.db = False, using
            job.__dict__ = {**values, "_state": state}
        return job

    @property
    def created_at(self) -> datetime.datetime:
        """When the job was called, by the caller's clock. Filter by ``fields.created_since``, sort by the id."""
        return self.made_at or time_of(self.id) or self.run_at

    @property
    def root_id(self) -> uuid.UUID:
        """The first job of the chain of calls that this job belongs to."""
        return self.root or self.id

    @property
    def task_id(self) -> str:
        """The id for Celery, written as the caller wrote it."""
        # A person may have edited the row by hand.
        return str((isinstance(self.options, dict) and self.options.get("task_id")) or self.id)

    @property
    def headers(self) -> dict[str, Any]:
        """The message headers that the caller gave, and that receivers of Celery's signals added."""
        given = self.options.get("headers") if isinstance(self.options, dict) else None
        return dict(given) if isinstance(given, dict) else {}

    @property
    def idempotency_key(self) -> str:
        """A key for providers (``Message-ID``, ``Idempotency-Key``): the same in every run of this job."""
        return self.marker_key or str(self.pk)

    @property
    def own_error(self) -> dict[str, Any] | None:
        """The error that this run was finished with; None if the row still has an earlier run's."""
        error = self.error if isinstance(self.error, dict) else {}
        return error if error.get("attempt") == self.lease else None

    @cached_property
    def attempted(self) -> list[str | None]:
        """The times of the errors with which this run tried to end; None: it tried to end without one."""
        return []

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the job is over; returns its result, with the types that its body returned.

        Parameters:
            timeout: seconds; None waits as long as it takes.

        Raises:
            TimeoutError: it is not over yet.
            celery.exceptions.TaskRevokedError: it was cancelled, or expired.
            Exception: it failed; the exception is made again from its class and arguments.
            RuntimeError: in a task, where it could wait for its own process.
            Job.DoesNotExist: the row is gone: its transaction rolled back, or it was deleted.
        """
        return above["wait"](self, timeout)

    def save_cursor(self, value: Any) -> None:
        """Save where the next run continues if this one is lost, in the same commit as the work done so far.

        Call it in the body of a task with ``atomic=False``, in the transaction of a part of its work. The next run
        finds the value in :attr:`cursor`. In a plain call it is only set.

        Parameters:
            value: what may be an argument: a number, a primary key, a dict.

        Raises:
            TypeError: the body is atomic, and has one commit only; or the value is not JSON.
            LostLease: the job was given to another run, cancelled or killed; this part of the work rolls back.
        """
        above["save_cursor"](self, value)

    def take_own_id(self) -> None:
        """Take a new id: the row of a frozen signature's first call has its id. Celery still sees the old id."""
        self.options.setdefault("task_id", str(self.id))
        self.id = uuid7()

    def forget_computed(self) -> None:
        """Forget what the database computed (times, counts): it is read from the row at the next access."""
        for name, value in list(self.__dict__.items()):
            if hasattr(value, "resolve_expression"):
                del self.__dict__[name]


class Pause(models.Model):
    """A queue whose jobs no worker claims."""

    queue = models.CharField(_("queue"), primary_key=True, max_length=255)
    at = models.DateTimeField(_("paused at"), default=Now)
    by = models.CharField(_("paused by"), max_length=150, default="")
    reason = models.TextField(_("reason"), default="")

    class Meta:
        db_table = "jobs_pause"
        verbose_name = _("paused queue")
        verbose_name_plural = _("paused queues")
        permissions: ClassVar = [("pause_queue", _("Can pause and resume queues"))]

    def __str__(self) -> str:
        return self.queue


class Cancellation(models.Model):
    """A request that a running job ends. It is no column of the job, because the run may have the job's row locked."""

    job = models.UUIDField(primary_key=True)
    at = models.DateTimeField(default=Now)
    #: ``Cancelled``, ``Revoked`` or ``Killed``, the type in the job's error.
    kind = models.CharField(max_length=32, default="Cancelled")
    reason = models.TextField(default="")

    class Meta:
        db_table = "jobs_cancellation"


class Marker(models.Model):
    """A row that says that work was done, in the transaction of its effects (``jobs.idempotency.markers``)."""

    class Kind(models.TextChoices):
        #: ``idempotency_key=`` of a task.
        TASK = "task", _("task")
        #: ``once()``.
        ONCE = "once", _("once")

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(_("key"), max_length=255)
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices)
    #: Of the arguments: the same key with other arguments is an error. Empty for ``once()``, which has no arguments.
    fingerprint = models.CharField(max_length=64, default="")
    #: The job that left it, whose result other jobs replay. It needs no foreign key: prune keeps both equally long.
    job = models.UUIDField(_("job"), null=True)
    created_at = models.DateTimeField(_("created at"), default=Now)
    expires_at = models.DateTimeField(_("expires at"), null=True)

    class Meta:
        db_table = "jobs_marker"
        verbose_name = _("marker")
        verbose_name_plural = _("markers")
        constraints: ClassVar = [models.UniqueConstraint(name="jobs_marker_unique", fields=["key", "kind"])]
        indexes: ClassVar = [
            models.Index(name="jobs_marker_job", fields=["job"]),
            models.Index(name="jobs_marker_expires", fields=["expires_at"]),
        ]

    def __str__(self) -> str:
        return self.key


# The tables of extensions are here as well: ``from jobs.models import Schedule``.
if TYPE_CHECKING:
    from jobs.models.added import *  # noqa: F403
for _module in extensions.modules("models"):
    if getattr(_module.__spec__, "_initializing", False):
        # It is waiting for this module to load, and is itself still empty.
        raise ImportError(
            f"{_module.__name__} was imported before jobs.models, which reads it: import from jobs.models"
        )
    _declared = [each for each in vars(_module).values() if getattr(each, "__module__", "") == _module.__name__]
    globals().update({each.__name__: each for each in _declared if hasattr(each, "_meta")})
    for _name, _column in getattr(_module, "COLUMNS", {}).items():
        Job.add_to_class(_name, _column)
        columns.add(_column.attname)
    columns.OPTIONS |= getattr(_module, "OPTIONS", {})
    Job._meta.indexes = [*Job._meta.indexes, *getattr(_module, "INDEXES", ())]

_DEFAULTS: dict[str, Any] = {
    field.attname: None if callable(field.default) else field.get_default() for field in Job._meta.concrete_fields
} | {"run_at": Now()}


def tables() -> list[type[models.Model]]:
    """All models of ours, also those of extensions that are apps of their own."""
    return [kind for config in extensions.app_configs() for kind in config.get_models()]
