"""Django's tasks are jobs: ``jobs.django_tasks.JobsBackend``."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import uuid

import django
import pytest
from asgiref.sync import async_to_sync
from celery import current_app
from django.conf import settings
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import signals as job_signals
from jobs.lifecycle import transitions
from jobs.models import Job
from tests import tasks as celery_tasks
from tests.helpers import why
from tests.helpers.harness import ROOT, Worker, claim, deliver, effects, run, wait_ended
from tests.helpers.rows import let_heartbeat, make, make_node
from tests.helpers.servers import wait_for

if django.VERSION < (6,):
    pytest.importorskip("django_tasks")
    from django_tasks import default_task_backend, signals
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
else:
    from django.tasks import default_task_backend, signals
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch

from tests.helpers import background

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def test_a_task_that_was_enqueued_is_a_job_of_the_callers_transaction():
    with transaction.atomic():
        background.add.enqueue(1)
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    with transaction.atomic():
        result = background.add.enqueue(1, b=2)
    job = Job.objects.get()
    assert (str(job.pk), job.task, job.args, job.kwargs) == (result.id, "tests.helpers.background.add", [1], {"b": 2})
    assert (job.queue, job.priority, job.state) == (current_app.conf.task_default_queue, None, "ready")


def test_the_result_follows_the_row(node):
    result = background.add.enqueue(1, b=2)
    assert (result.status, result.is_finished, result.attempts, result.worker_ids) == ("READY", False, 0, [])
    assert background.add.get_result(result.id) == result
    job = claim(result.id)
    result.refresh()
    assert (result.status, result.attempts) == ("RUNNING", 1)
    Job.objects.filter(pk=job.pk).update(state="ready")
    deliver(result)
    result.refresh()
    assert (result.status, result.return_value, result.errors) == ("SUCCESSFUL", 3, [])
    assert (result.args, result.kwargs, result.worker_ids) == ([1], {"b": 2}, [str(node.pk)])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


def test_effects_and_completion_are_one_commit(node):
    ok, bad = background.effect.enqueue("a"), background.fail.enqueue("b")
    deliver(ok), deliver(bad)
    assert effects() == {"a": 1}, "what a body did that failed is rolled back"
    bad.refresh()
    assert (bad.status, bad.attempts, [each.exception_class for each in bad.errors]) == ("FAILED", 1, [ValueError])
    assert bad.errors[0].traceback.endswith("ValueError: no b\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = bad.return_value


def test_a_result_that_is_no_json_fails_the_job(node):
    result = background.no_json.enqueue()
    deliver(result)
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", TypeError)


def test_a_cancelled_job_is_a_task_that_failed():
    job = make(
        "cancelled", task="tests.helpers.background.add", args=[1], options={"headers": {"django_task": "default"}}
    )
    result = background.add.get_result(str(job.pk))
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert issubclass(result.errors[0].exception_class, Exception)


def test_the_options_of_a_backend_are_those_of_the_celery_task(node):
    result = background.again.enqueue("a")
    deliver(result)
    result.refresh()
    assert (result.status, result.attempts, result.backend) == ("READY", 1, "own")
    assert effects() == {"a": 1}, "without a transaction around it"
    Job.objects.update(state="ready")
    deliver(result)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 2, 2)
    # Who made the first attempt the row does not know.
    assert result.worker_ids == ["", str(node.pk)]
    with pytest.raises(InvalidTask, match="'own' has others"):
        background.add.using(backend="own")


def test_the_context_tells_of_this_attempt(node):
    result = background.told.enqueue("a")
    deliver(result)
    result.refresh()
    assert result.return_value == [result.id, 1, "RUNNING", ["a"], "a"]


def test_higher_priorities_come_first_whatever_the_broker_calls_first(node, settings):
    for url in ("redis://", "amqp://"):
        current_app.conf.broker_url, before = url, current_app.conf.broker_url
        try:
            low, plain = background.add.using(priority=-7).enqueue(1), background.add.enqueue(2)
            high = background.add.using(priority=100).enqueue(3)
        finally:
            current_app.conf.broker_url = before
        ordered = Job.objects.filter(pk__in=[low.id, plain.id, high.id]).order_by("rank")
        assert [str(job.pk) for job in ordered] == [high.id, plain.id, low.id]
        assert low.task.get_result(low.id).task.priority == -7


def test_run_after_is_kept_in_the_row():
    later = timezone.now() + datetime.timedelta(hours=1)
    result = background.add.using(run_after=later).enqueue(1)
    job = Job.objects.get()
    assert (job.state, job.run_at) == ("scheduled", later)
    assert result.task.get_result(result.id) == result
    background.add.using(run_after=timezone.now() - datetime.timedelta(hours=1)).enqueue(1)
    assert Job.objects.filter(state="ready").count() == 1


def test_queues_keep_their_names_but_the_default_one_is_celerys():
    default, mail = background.add.enqueue(1), background.add.using(queue_name="mail").enqueue(1)
    assert [Job.objects.get(pk=each.id).queue for each in (default, mail)] == [
        current_app.conf.task_default_queue,
        "mail",
    ]
    for each in (default, mail):
        assert each.task.get_result(each.id).task.queue_name == each.task.queue_name
    Job.objects.update(queue="elsewhere")
    assert background.add.get_result(mail.id).task.queue_name == "default", "a queue that only Celery knows"


async def _enqueue_and_read():
    result = await background.effect_async.aenqueue("a")
    return result, await background.effect_async.aget_result(result.id)


def test_a_coroutine_is_a_body_too_and_may_be_enqueued_from_one(node):
    result, read = async_to_sync(_enqueue_and_read)()
    assert result == read
    deliver(result)
    result.refresh()
    assert (result.return_value, effects()) == ("a", {"a": 1})


def test_what_cannot_run_is_refused_at_the_call():
    for wrong in ({"queue_name": "nowhere"}, {"priority": 101}, {"run_after": datetime.datetime(2030, 1, 1)}):
        with pytest.raises(InvalidTask):
            background.add.using(**wrong)
    with pytest.raises(TypeError, match="Unsupported type"):
        background.add.enqueue(timezone.now())
    for call in (background.add.enqueue, lambda: background.told.enqueue("a", "b")):
        with pytest.raises(TypeError, match="argument"):
            call()
    assert not Job.objects.exists()


def test_a_result_belongs_to_its_task():
    other = celery_tasks.effect.delay("a")
    for key in ("123", str(uuid.uuid4()), other.id):
        with pytest.raises(TaskResultDoesNotExist):
            background.add.get_result(key)
    with pytest.raises(TaskResultMismatch):
        background.effect.get_result(background.add.enqueue(1).id)


def test_djangos_signals_tell_of_it(node):
    heard = []

    def hear(sender, task_result, signal, **kwargs):
        heard.append((sender.__name__, task_result.id, task_result.status))

    known = (signals.task_enqueued, signals.task_started, signals.task_finished)
    for signal in known:
        signal.connect(hear)
    try:
        ok, bad = background.add.enqueue(1), background.fail.enqueue("a")
        deliver(ok), deliver(bad)
        deliver(celery_tasks.effect.delay("b"))
    finally:
        for signal in known:
            signal.disconnect(hear)
    said = {key: [status for name, each, status in heard if each == key] for key in (ok.id, bad.id)}
    assert said == {ok.id: ["READY", "RUNNING", "SUCCESSFUL"], bad.id: ["READY", "RUNNING", "FAILED"]}
    assert {name for name, *_ in heard} == {"JobsBackend"}
    assert len(heard) == 6


def test_options_of_jobs_are_given_by_the_path(node):
    """``JOBS["TASKS"]`` is read when the task becomes known: in a process of its own."""
    code = (
        "from tests.helpers import background; from celery import current_app\n"
        "task = current_app.tasks['tests.helpers.background.add']\n"
        "print(task.atomic, task.key_templates['unique'].of([1], {}))"
    )
    environment = {
        "JOBS_TEST_SETTINGS": '{"TASKS": {"tests.helpers.background.a*d": {"atomic": false, "unique": "add:{a}:{b}"}}}'
    }
    assert in_a_fresh_interpreter("import django; django.setup()\n" + code, environment) == "False add:1:1"


def test_a_task_may_be_declared_before_there_are_models(tmp_path):
    """In a module that ``models.py`` imports, say."""
    module = tmp_path / "eager_background.py"
    package = "django.tasks" if django.VERSION >= (6,) else "django_tasks"
    module.write_text(f"from {package} import task\n@task\ndef early(): pass\n")
    code = (
        "import eager_background, django; django.setup()\n"
        "from celery import current_app; print('eager_background.early' in current_app.tasks)"
    )
    assert in_a_fresh_interpreter(code, {"PYTHONPATH": f"{tmp_path}:{ROOT}"}) == "True"


def in_a_fresh_interpreter(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), **os.environ, **environment},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_check_says_that_the_app_has_to_be_installed(settings):
    assert default_task_backend.check() == []
    settings.INSTALLED_APPS = [each for each in settings.INSTALLED_APPS if each != "jobs"]
    assert [each.hint for each in default_task_backend.check()] == [
        "Add 'jobs' to INSTALLED_APPS, and run manage.py migrate."
    ]


def test_a_worker_runs_them_and_imports_what_it_does_not_know_yet():
    assert "immediate" in settings.TASKS
    with Worker():
        results = [
            background.effect.enqueue("a"),
            background.effect_async.enqueue("b"),
            background.told.enqueue("c"),
            background.fail.enqueue("d"),
            background.declared_elsewhere.using(backend="default").enqueue(),
        ]
        wait_ended(*[each.id for each in results])
    for each in results:
        each.refresh()
    assert [each.status for each in results] == ["SUCCESSFUL"] * 3 + ["FAILED", "SUCCESSFUL"]
    assert effects() == {"a": 1, "b": 1}
    assert results[2].return_value[:2] == [results[2].id, 1]


def test_a_run_costs_one_query_more_for_djangos_signals(node):
    celery_tasks.noop.delay()
    ours, plain = claim(background.add.enqueue(1).id), claim(Job.objects.get(task="tests.tasks.noop").pk)
    with CaptureQueriesContext(connection) as few:
        run(plain)
    with CaptureQueriesContext(connection) as more:
        run(ours)
    assert len(more) == len(few) + 1


def test_a_task_that_no_worker_can_import_waits_and_says_so():
    def of_tomorrow():
        pass

    of_tomorrow.__qualname__ = "of_tomorrow"
    of_tomorrow.__module__ = "tests.helpers.background"
    with Worker() as worker:
        result, known = background.task(of_tomorrow).enqueue(), background.add.enqueue(1)
        wait_ended(known.id)
        wait_for(lambda: Job.objects.get(pk=result.id).error, 20, "a worker has seen it")
        assert "cannot be imported: ImportError" in worker.text()
        assert why.first(result.id)["code"] == "unknown_task"


def test_why_does_not_miss_what_a_worker_will_import():
    idle = make_node(tasks=[], queues=["celery", current_app.conf.task_default_queue])
    let_heartbeat(idle)
    unknown, result = make(task="tests.helpers.background.unknown"), background.add.enqueue(1)
    assert "unknown_task" in why.codes(unknown.pk)
    assert "unknown_task" not in why.codes(result.id)


def test_a_task_whose_function_is_gone_disturbs_nobody(caplog):
    heard: list[uuid.UUID] = []

    def hears(job, **more):
        heard.append(job.pk)

    job = Job.objects.get(pk=background.add.enqueue(1, 2).id)
    Job.objects.update(task="tests.nowhere.gone")
    job_signals.cancelled.connect(hears)
    try:
        assert transitions.cancel(job.pk, "default")
    finally:
        job_signals.cancelled.disconnect(hears)
    assert heard == [job.pk]
    assert "a receiver of a signal of Django's tasks failed" in caplog.text
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(str(job.pk))
