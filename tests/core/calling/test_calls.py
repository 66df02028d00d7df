"""A call becomes a row; the request that its body sees is the one that Celery would have made, field by field."""

from __future__ import annotations

import datetime
import enum
import uuid

import pytest
from celery import current_app
from django.db import IntegrityError
from django.utils import timezone

from jobs import Task
from jobs.models import Job
from tests.helpers.harness import deliver
from tests.helpers.parity import ID, LATER, OPTIONS, QUEUES, ids_replaced, resolve, seen_by_ours, seen_by_stock

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("task", ["add", "limited", "routed"])
def test_the_body_sees_the_request_that_celery_would_have_made(stock, ours, node, name, task):
    options = OPTIONS[name]
    if task != "add" and "kwargs" in options:
        pytest.skip("takes no such argument")

    def call(app):
        return app.tasks[f"parity.{task}"].apply_async((1,), task_id=ID, **resolve(app, options))

    expected = seen_by_stock(stock, call)
    sees = seen_by_ours(ours, call)
    assert sees[0] == expected[0]
    assert ids_replaced(sees) == ids_replaced(expected), "and those of its links"


def test_expires_in_seconds_counts_on_the_clock_of_the_database(ours, monkeypatch):
    """The caller's clock is an hour behind: nobody takes the job for expired."""
    now = timezone.now
    monkeypatch.setattr("django.utils.timezone.now", lambda: now() - datetime.timedelta(hours=1))
    ours.tasks["parity.add"].apply_async((1,), expires=60)
    assert 50 < (Job.objects.get().expires_at - now()).total_seconds() < 70


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"serializer": "pickle"}, ValueError, "serializer"),
        ({"task_id": "not-a-uuid"}, ValueError, "UUID"),
        ({"eta": "yesterday?"}, ValueError, "."),
        ({"headers": {"x": object()}}, TypeError, "options"),
        ({"countdown": 10**12}, ValueError, "more than ten years"),
    ],
)
def test_an_option_that_cannot_be_kept_raises(ours, options, error, text):
    with pytest.raises(error, match=text):
        ours.tasks["parity.add"].apply_async((1,), **options)
    assert not Job.objects.exists()


def test_a_known_queue_object_is_kept_by_name(ours):
    ours.tasks["parity.add"].apply_async((1,), queue=QUEUES[1])
    assert Job.objects.get().queue == "mail"


def test_task_id_of_an_existing_row_raises(ours):
    key = str(uuid.uuid4())
    ours.tasks["parity.add"].apply_async((1,), task_id=key)
    with pytest.raises(IntegrityError):
        ours.tasks["parity.add"].apply_async((1,), task_id=key)


def test_countdown_wins_over_eta_as_in_celery(ours):
    ours.tasks["parity.add"].apply_async((1,), eta=LATER, countdown=10)
    job = Job.objects.get()
    assert job.run_at.year < LATER.year


class Mail(str, enum.Enum):  # noqa: UP042 (its str() is its name)
    QUEUE = "mail"


class Urgent(int, enum.Enum):
    HIGH = 5


def test_a_member_of_an_enum_is_its_value(declare):
    declare().apply_async(queue=Mail.QUEUE, priority=Urgent.HIGH)
    job = Job.objects.get()
    assert (job.queue, job.priority) == ("mail", 5)


def test_many_calls_are_those_of_the_class(declare):
    """A base class of the project adds the tenant to each call."""

    class TenantTask(Task):
        abstract = True

        def apply_async(self, args=None, kwargs=None, **options):
            options["headers"] = {**(options.get("headers") or {}), "schema": "acme"}
            return super().apply_async(args, kwargs, **options)

    task = declare(base=TenantTask)
    results = [task.delay(1), *task.delay_many([(2,), {"user_id": 3}], countdown=60)]
    assert [Job.objects.get(pk=each.id).headers for each in results] == [{"schema": "acme"}] * 3
    assert Job.objects.filter(state="scheduled").count() == 2
    with pytest.raises(TypeError, match="takes"):
        task.delay_many([(4,), (5, 6, 7)])
    assert Job.objects.count() == 3


def test_headers_and_stamps_have_their_types(declare, node):
    seen = {}

    def body(self):
        seen.update(self.request.headers, stamps=self.request.stamps)

    key = uuid.uuid4()
    deliver(
        declare(body=body, bind=True).apply_async(
            headers={"tenant": key, "stamps": {"by": key}, "stamped_headers": ["by"]}
        )
    )
    assert (seen["tenant"], seen["stamps"]) == (key, {"by": key})


def test_a_call_in_a_body_inherits_the_priority(declare, node):
    child = declare()

    def body():
        child.delay()
        child.apply_async(priority=2)

    current_app.conf.task_inherit_parent_priority = True
    try:
        deliver(declare(body=body).apply_async(priority=7))
    finally:
        current_app.conf.task_inherit_parent_priority = False
    assert sorted(Job.objects.filter(task=child.name).values_list("priority", flat=True)) == [2, 7]


def test_an_empty_text_is_no_time(declare):
    with pytest.raises(ValueError, match="expires='' must be"):
        declare().apply_async(expires="")
