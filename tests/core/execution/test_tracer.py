"""What Celery is told of a run, step by step, and what its handlers may do with the request."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import signals
from django.db import OperationalError
from django.utils import timezone

from jobs import Task
from jobs.models import Job
from tests import tasks
from tests.helpers.harness import deliver, run_ready

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("node")]


def five():
    return 5


class TakesAnArgument(Task):
    abstract = True

    def before_start(self, task_id, args, kwargs):
        self.tenant = kwargs.pop("tenant")


def test_what_a_handler_takes_out_of_the_arguments_is_there_at_the_next_run(declare):
    def body(self, tenant):
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return tenant

    job = declare(base=TakesAnArgument, bind=True, body=body).delay(tenant="a")
    run_ready()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.result, row.kwargs) == ("succeeded", "a", {"tenant": "a"})


def test_what_an_attempt_that_met_a_conflict_wrote_on_the_request_is_gone(declare):
    attempts = []

    def body(self):
        attempts.append(self.request.chain)
        if len(attempts) == 1:
            self.request.chain = [tasks.effect.si("of the first attempt")]
            raise OperationalError(1213, "deadlock")

    assert deliver(declare(bind=True, body=body).delay())[0] == "SUCCESS"
    assert attempts == [None, None]
    assert not Job.objects.filter(task=tasks.effect.name).exists()


class NamesItsOptions(Task):
    """A project's own, which knows only the options that it uses."""

    abstract = True

    def apply_async(self, args=None, kwargs=None, task_id=None, countdown=None, eta=None, retries=None, **options):
        if task_id is not None:
            # A call of its own beside the retry.
            super().apply_async(args, {"note": "beside"})
        known = {name: options[name] for name in ("root_id", "parent_id", "headers", "link") if options.get(name)}
        times = {"countdown": countdown, "eta": eta, "retries": retries or 0}
        return super().apply_async(args, kwargs, task_id=task_id, **times, **known)


def test_a_retry_is_known_whatever_a_projects_own_call_makes_of_its_options(declare):
    def body(self, note=""):
        if self.request.retries == 0 and not note:
            raise self.retry(countdown=0)
        return note

    job = declare(base=NamesItsOptions, bind=True, body=body).delay()
    run_ready()
    # The call beside it went with the first run's transaction.
    row = Job.objects.get()
    assert (str(row.pk), row.state, row.retries, row.result) == (job.id, "succeeded", 1, "")


class HasNoBackend(Task):
    abstract = True
    is_away = True

    @property
    def backend(self):
        if type(self).is_away:
            raise ConnectionError("away")
        return self.app.backend


def test_a_result_backend_that_cannot_be_made_puts_the_job_off(declare):
    task = declare(body=five)
    job = task.delay()
    task.__class__ = type("Away", (HasNoBackend, task.__class__), {"backend": HasNoBackend.backend})
    assert deliver(job)[0] == "IGNORED"
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.snoozes, row.node_losses) == ("scheduled", 1, 0)
    type(task).is_away = False
    # SQLite's clock has milliseconds.
    Job.objects.update(run_at=timezone.now() - timedelta(seconds=1))
    run_ready()
    assert Job.objects.get(pk=job.id).result == 5


class Away:
    """A result backend of the project's own, which does not answer."""

    reads_rows = False

    def mark_as_done(self, *args, **kwargs):
        raise ConnectionError("away")

    def process_cleanup(self):
        pass


def test_a_success_that_the_result_backend_cannot_keep_is_told_as_one(declare):
    task, told = declare(body=five), []

    def post(state=None, **kwargs):
        told.append(state)

    def internal(request=None, **kwargs):
        told.append((request["id"], "jobs_run" in request))

    job = task.delay()
    task.backend = Away()
    signals.task_postrun.connect(post)
    signals.task_internal_error.connect(internal)
    try:
        deliver(job)
    finally:
        signals.task_postrun.disconnect(post)
        signals.task_internal_error.disconnect(internal)
    assert told == ["SUCCESS", (job.id, False)]
    assert Job.objects.get().state == "succeeded"
