"""What holds for each job's row. CHECK constraints keep most of it; but somebody may have dropped them."""

from __future__ import annotations

from django.apps import apps
from django.db import connections
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from jobs.models import Job, State
from jobs.verify.rule import LIVE, Rows, Rule, Shape, View

SHAPES = (
    Shape(
        id="state-known",
        says=_("a job is in one of the six states"),
        broken=~Q(state__in=State.values),
        states=(None,),
    ),
    Shape(
        id="live-not-finished",
        says=_("a job that has not ended has no time of its end"),
        broken=Q(finished_at__isnull=False),
        states=LIVE,
    ),
    Shape(
        id="ended-finished",
        says=_("a job that ended has the time of its end"),
        broken=Q(finished_at=None),
        states=(None,),
    ),
    Shape(
        id="failure-explained",
        says=_("a job that failed or was cancelled says why"),
        broken=Q(state__in=(State.FAILED, State.CANCELLED), error__isnull=True),
        states=(None,),
    ),
    Shape(
        id="success-without-error",
        says=_("a job that succeeded has no error"),
        broken=Q(state=State.SUCCEEDED, error__isnull=False),
        states=(None,),
    ),
    Shape(
        id="success-claimed",
        says=_("a job that succeeded was claimed: it has a lease, a token, a node and a start"),
        broken=Q(state=State.SUCCEEDED) & (Q(lease__lt=1) | Q(token=None) | Q(node_id=None) | Q(started_at=None)),
        states=(None,),
    ),
    Shape(
        id="running-claimed",
        says=_("a running job has a lease, a token, a node and a start"),
        broken=Q(lease__lt=1) | Q(token=None) | Q(node_id=None) | Q(started_at=None),
        states=(State.RUNNING,),
    ),
    Shape(
        id="counts-add-up",
        says=_("no count is negative, and each crash, loss and snooze had a claim of its own"),
        # Not the retries: a job that was made of somebody else's message brings its own number.
        broken=Q(retries__lt=0)
        | Q(crashes__lt=0)
        | Q(node_losses__lt=0)
        | Q(snoozes__lt=0)
        | Q(lease__lt=F("crashes") + F("node_losses") + F("snoozes")),
    ),
    Shape(
        id="losses-explained",
        says=_("each job that crashed or lost its worker has an error that says so"),
        broken=(Q(crashes__gt=0) | Q(node_losses__gt=0)) & Q(errors__isnull=True),
    ),
)


def _missing(view: View, using: str) -> Rows:
    """Constraints and indexes that the models have, and the database has not."""
    connection = connections[using]
    missing = []
    with connection.cursor() as cursor:
        for model in apps.get_app_config(Job._meta.app_label).get_models():
            meta = model._meta
            present = connection.introspection.get_constraints(cursor, meta.db_table)
            names = [index.name for index in meta.indexes]
            if connection.features.can_introspect_check_constraints:
                names += [constraint.name for constraint in meta.constraints]
            missing += [name for name in names if name not in present]
    return Rows(keys=missing)


RULES = (
    Rule(
        id="schema-complete",
        says=_("the database has all constraints and indexes of the models"),
        broken=_missing,
    ),
)
