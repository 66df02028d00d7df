"""The rows: events, which handler wants which events, and the lock of the process that hands events on."""

import uuid
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs import extensions
from jobs.models.fields import Completed, JSONText, Sparse, uuid7

# Else they would be tables of the app ``jobs``.
extensions.need(__package__)

#: The header of a handler's job that says which event it handles.
EVENT_HEADER = "event"

#: The header of an event for positional arguments, which only a Celery task that came as an event has.
ARGS = "args"

#: The headers of an event for W3C's trace context.
TRACE = ("traceparent", "tracestate")

#: Told here, and not handed on yet; received, and not handed on yet; numbered, and not sent yet.
UNRELAYED = Q(relayed_at__isnull=True, received_at__isnull=True)
PARKED = Q(relayed_at__isnull=True, received_at__isnull=False)
UNSENT = Q(number__isnull=False, sent_at__isnull=True, received_at__isnull=True)


class Event(Completed):
    """An event: told of here in the transaction in which it happened, or received from another service."""

    #: In the order in which they were told here, or arrived.
    id = models.BigAutoField(primary_key=True)
    #: The id that all services know it by (CloudEvents' ``id``).
    uuid = models.UUIDField(_("event id"), unique=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=255)
    version = models.SmallIntegerField(_("version"), default=1, db_default=1)
    #: The service that told of it.
    source = models.CharField(_("source"), max_length=255)
    #: Events of the same key are handled in their order (``order_key=``); None: each on its own.
    order_key = models.CharField(_("order key"), max_length=255, null=True)
    data = JSONText(_("data"), default=dict, db_default={})
    #: ``traceparent`` and the like, and :data:`ARGS`.
    headers = Sparse(_("headers"), default=dict, null=True)
    at = models.DateTimeField(_("happened at"), default=Now, db_default=Now())
    #: The job whose body told it.
    job = models.UUIDField(_("job"), null=True)
    #: When the jobs of this database's handlers were made.
    relayed_at = models.DateTimeField(_("handed on at"), null=True)
    #: Its place among the source's events of this name, without a gap; only with a broker.
    number = models.BigIntegerField(_("number"), null=True)
    #: The broker has confirmed it.
    sent_at = models.DateTimeField(_("published at"), null=True)
    #: One queue was full, and others have the event: from now on only services that recognize its id may get it.
    was_refused = models.BooleanField(default=False, db_default=False)
    #: When it came from another database; None: it was told here.
    received_at = models.DateTimeField(_("received at"), null=True)
    #: Why no handler handles it, in words.
    problem = models.TextField(_("problem"), null=True)

    class Meta:
        db_table = "jobs_event"
        verbose_name = _("event")
        verbose_name_plural = _("events")
        permissions: ClassVar = [("replay_event", _("Can replay events"))]
        constraints: ClassVar = [
            # A gap in the numbers shows that an event was lost between two services.
            models.UniqueConstraint(
                name="jobs_event_number", fields=["source", "name", "number"], condition=Q(number__isnull=False)
            ),
        ]
        indexes: ClassVar = [
            models.Index(name="jobs_event_unrelayed", fields=["id"], condition=UNRELAYED),
            models.Index(name="jobs_event_parked", fields=["source", "name", "number"], condition=PARKED),
            models.Index(name="jobs_event_unsent", fields=["id"], condition=UNSENT),
            # To read name by name while a queue is full. Without the column ``sent_at``, which is always NULL here,
            # SQLite takes the index of all numbers.
            models.Index(name="jobs_event_unsent_of", fields=["source", "name", "sent_at", "number"], condition=UNSENT),
            models.Index(name="jobs_event_name", fields=["name", "id"]),
            models.Index(name="jobs_event_problem", fields=["id"], condition=Q(problem__isnull=False)),
            # For people who ask which events a job told of.
            models.Index(name="jobs_event_job", fields=["job"], condition=Q(job__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.name}[{self.uuid}]"


class Subscription(models.Model):
    """A handler and what it wants, as the workers of its service wrote it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    service = models.CharField(_("service"), max_length=255)
    #: The name of its task.
    handler = models.CharField(_("handler"), max_length=255)
    #: The event's name; ``*`` is one word of it, ``#`` any number.
    pattern = models.CharField(_("events"), max_length=255)
    #: None: any version.
    version = models.SmallIntegerField(_("version"), null=True)
    queue = models.CharField(_("queue"), max_length=255)
    rank = models.SmallIntegerField(default=0)
    #: Events of the same order key are handled one after the other.
    is_ordered = models.BooleanField(default=True)
    #: How many of its failed jobs are kept, the newest; None: all, for ``JOBS["RETENTION_FAILED"]``.
    keep_failed = models.PositiveIntegerField(_("failed jobs that are kept"), null=True)
    #: Since when it wants these events, of this version.
    since = models.DateTimeField(_("since"), default=Now)
    #: What it wanted before, and since when; the oldest first: ``[[pattern, version, since], ...]``.
    before = models.JSONField(default=list)
    #: When the worker began that wrote this. If workers disagree, the newest one counts.
    defined_at = models.DateTimeField(default=Now)
    #: When a worker with this code was there last.
    seen_at = models.DateTimeField(default=Now)

    class Meta:
        db_table = "jobs_subscription"
        verbose_name = _("subscription")
        verbose_name_plural = _("subscriptions")
        constraints: ClassVar = [
            models.UniqueConstraint(name="jobs_subscription_handler", fields=["service", "handler"])
        ]

    def __str__(self) -> str:
        return f"{self.handler} ({self.pattern})"


class Relay(models.Model):
    """The one row that a process locks while it hands events on, so that one process at a time does."""

    id = models.SmallIntegerField(primary_key=True)
    #: The worker that publishes to the broker, as long as it lives.
    node = models.UUIDField(null=True)
    #: The last ``Job.order_position`` that was given.
    place = models.BigIntegerField(default=0)

    class Meta:
        db_table = "jobs_event_relay"


#: Jobs of the same key run one after the other, the smallest position first. A job waits behind others as long as it
#: has a position.
COLUMNS: dict[str, Any] = {
    "order_key": models.CharField(_("order key"), max_length=255, null=True),
    "order_position": models.BigIntegerField(null=True),
}
INDEXES = [
    models.Index(
        name="jobs_job_order",
        fields=["order_key", "order_position", "state"],
        condition=Q(order_key__isnull=False, state__in=("scheduled", "ready", "running")),
    )
]
