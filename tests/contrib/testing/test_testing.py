"""How a project tests its tasks: ``jobs.testing``, in each kind of test case, and by its pytest plugin."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import threading
import uuid
from configparser import ConfigParser
from pathlib import Path

import pytest
from celery import current_app, shared_task
from celery.exceptions import NotRegistered
from django.core import mail
from django.db import IntegrityError, transaction
from django.db.models.signals import post_save
from django.db.transaction import TransactionManagementError
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from django.utils import timezone

from jobs import Busy, Cancel, Snooze, guard, lock, once
from jobs.contrib.pauses import pauses
from jobs.lifecycle.worker_state import worker_state
from jobs.models import Job, Lock, Marker, Node, StoredResult
from jobs.store import databases
from jobs.testing import assert_enqueued, assert_not_enqueued, capture_jobs, run_jobs
from tests.models import Effect

pytestmark = [pytest.mark.database]

ROOT = Path(__file__).resolve().parents[3]
HOUR = datetime.timedelta(hours=1)


@shared_task(bind=True)
def leaves(self, key, **call):
    """Leave a trace; and call the task again, with these options."""
    Effect.objects.create(key=key, note=self.job.idempotency_key)
    if call:
        self.apply_async(("again",), **call)
    return key


@shared_task
def breaks(key, how=""):
    Effect.objects.create(key=key)
    if how == "database":
        Effect.objects.create(pk=Effect.objects.get(key=key).pk)
    if how == "exit":
        sys.exit(3)
    if how == "pytest":
        pytest.fail("of the body")
    raise LookupError(key)


@shared_task(bind=True, max_retries=2, default_retry_delay=600)
def tries(self, key, times):
    Effect.objects.create(key=f"{key}-{self.request.retries}")
    if self.request.retries < times:
        raise self.retry()


@shared_task
def steps_out(key, how):
    Effect.objects.create(key=key)
    raise {"snooze": Snooze(600), "cancel": Cancel("no"), "busy": Busy("busy")}[how]


@shared_task(bind=True, idempotency_key="pays:{order}", lock="pays:{order}")
def pays(self, order, note=""):
    Effect.objects.create(key=self.job.idempotency_key, note=str(self.lock_token))
    return self.job.idempotency_key


@shared_task(atomic=False)
def by_itself(key, fails=False):
    Effect.objects.create(key=key)
    if fails:
        raise LookupError(key)


@shared_task(atomic=False)
def marks_by_itself(key):
    with once("marks", key):
        Effect.objects.create(key=key)


@shared_task(atomic=False)
def guards_by_itself():
    with guard(Effect.objects.all()):
        pass


@shared_task(atomic=False)
def breaks_by_itself(key):
    Effect.objects.create(key=key)
    Effect.objects.create(pk=Effect.objects.get(key=key).pk)


@shared_task(bind=True)
def says_how_far_it_is(self):
    self.update_state(state="PROGRESS", meta={"done": 1})


@shared_task(bind=True)
def shows(self, *args):
    return self.job


@shared_task(bind=True)
def shows_itself(self, times):
    job = self.job
    assert self.job is job
    return [job, *(self(times - 1) if times else [])]


@shared_task(bind=True)
def shows_of_others(self):
    Effect.objects.create(key=str(shows("a").pk))
    Effect.objects.create(key=str(shows("b").pk))
    if self.request.retries == 0:
        raise self.retry(countdown=0)


@shared_task
def mails():
    mail.send_mail("Welcome", "", None, ["ada@example.com"])


@shared_task(bind=True, max_retries=2)
def patient(self, keys):
    keys.append((self.job.idempotency_key, self.job.retries))
    raise self.retry(countdown=0)


def effects() -> list[str]:
    return list(Effect.objects.order_by("pk").values_list("key", flat=True))


def states() -> list[str]:
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


# run_jobs()


def test_what_waits_runs_and_what_it_enqueues(case):
    leaves.delay("first", countdown=0)
    ran = run_jobs()
    assert effects() == ["first", "again"]
    assert [job.task for job in ran] == [f"{__name__}.leaves"] * 2
    assert ran.states == {"succeeded": 2}
    assert Effect.objects.first().note == str(ran[0].pk)
    assert run_jobs() == []


def test_the_order_is_that_of_the_claim(case):
    for key, priority in (("last", 9), ("first", None), ("second", None), ("third", 5)):
        leaves.apply_async((key,), priority=priority, queue="mail" if key == "second" else None)
    run_jobs()
    assert effects() == ["first", "second", "third", "last"]


def test_what_is_enqueued_meanwhile_has_its_place_in_the_order(case):
    leaves.apply_async(("last",), priority=9)
    leaves.apply_async(("first",), {"priority": 1}, priority=5)
    run_jobs()
    assert effects() == ["first", "again", "last"]


def test_a_limit_stops_it(case):
    leaves.delay_many([("a",), ("b",), ("c",)])
    assert len(run_jobs(limit=2)) == 2
    assert effects() == ["a", "b"]


def test_what_never_ends_is_an_error(case, monkeypatch):
    monkeypatch.setattr("jobs.testing.inline.ENDLESS", 3)
    leaves.delay_many([("a",), ("b",), ("c",), ("d",)])
    with pytest.raises(AssertionError, match="3 jobs ran, and there are still more"):
        run_jobs()


def test_scheduled_jobs_wait_until_time_moves_and_run_in_the_order_of_their_time(case):
    leaves.apply_async(("late",), countdown=3000, priority=0)
    leaves.apply_async(("early",), eta=timezone.now() + datetime.timedelta(minutes=1), priority=9)
    leaves.apply_async(("tomorrow",), countdown=86400)
    assert run_jobs() == []
    assert [job.args for job in run_jobs(until=timezone.now() + HOUR)] == [["early"], ["late"]]
    assert effects() == ["early", "late"]


def test_what_is_put_off_later_is_put_off_from_then_on(case):
    leaves.apply_async(("first",), {"countdown": 1800}, countdown=2700)
    leaves.apply_async(("second",), countdown=3300)
    before = timezone.now()
    assert run_jobs(until=before + HOUR).states == {"succeeded": 2}
    again = Job.objects.get(state="scheduled")
    assert abs((again.run_at - before).total_seconds() - 4500) < 60
    run_jobs(until=before + 2 * HOUR)
    assert effects() == ["first", "second", "again"]


def test_what_expires_on_the_way_does_not_run(case):
    leaves.apply_async(("expires",), countdown=3000, expires=1500)
    leaves.apply_async(("calls",), {"countdown": 60, "expires": 120}, countdown=2000)
    # It expires between two of its attempts.
    tries.apply_async(("a", 2), countdown=2000, expires=2900)
    run_jobs(until=timezone.now() + HOUR)
    assert effects() == ["calls", "again"]
    assert states() == ["cancelled", "succeeded", "cancelled", "succeeded"]


def test_time_with_a_time_zone(case):
    with pytest.raises(ValueError, match="needs a time zone"):
        run_jobs(until=datetime.datetime(2030, 1, 1))


def test_the_first_exception_is_raised_as_it_was_and_only_the_body_rolls_back(case):
    leaves.delay("before")
    breaks.delay("broken")
    leaves.delay("after")
    with pytest.raises(LookupError, match="broken") as caught:
        run_jobs()
    assert caught.traceback[-1].name == "breaks"
    assert effects() == ["before"]
    assert states() == ["succeeded", "failed", "ready"]
    run_jobs()
    assert effects() == ["before", "after"]


def test_rows_instead_of_exceptions(case):
    breaks.delay("broken")
    leaves.delay("after")
    failed, succeeded = run_jobs(raises=False)
    assert (failed.state, failed.error["type"], succeeded.state) == ("failed", "LookupError", "succeeded")
    assert effects() == ["after"]


@pytest.mark.parametrize(
    ("how", "kind"), [("database", IntegrityError), ("exit", SystemExit), ("pytest", pytest.fail.Exception)]
)
def test_whatever_a_body_raises_comes_as_it_was(case, how, kind):
    breaks.delay("broken", how)
    with pytest.raises(kind):
        run_jobs()
    assert (effects(), states()) == ([], ["failed"])
    breaks.delay("broken", how)
    assert run_jobs(raises=False).states == {"failed": 1}


def test_a_retry_is_no_failure(case):
    tries.delay("a", 2)
    assert run_jobs().states == {"scheduled": 1}
    ran = run_jobs(until=timezone.now() + HOUR)
    assert ran.states == {"scheduled": 1, "succeeded": 1}
    # Rolled back with the attempts that failed.
    assert effects() == ["a-2"]


def test_the_last_retry_is_one(case):
    tries.delay("a", 9)
    with pytest.raises(Exception, match="Can't retry"):
        run_jobs(until=timezone.now() + HOUR)
    assert effects() == []


def test_what_steps_out_is_no_failure(case):
    steps_out.delay("a", "snooze")
    steps_out.delay("b", "cancel")
    assert run_jobs().states == {"scheduled": 1, "cancelled": 1}
    assert effects() == []
    # It comes back six times within the hour, and not for ever.
    assert run_jobs(until=timezone.now() + HOUR).states == {"scheduled": 6}


def test_an_unknown_task_is_named(case):
    Job.objects.create(task="gone.task", queue="celery")
    with pytest.raises(NotRegistered, match=r"gone\.task.*import the module"):
        run_jobs()


def test_a_paused_queue_waits(case):
    pauses.pause(current_app.conf.task_default_queue, "default")
    leaves.delay("a")
    leaves.apply_async(("b",), queue="mail")
    leaves.apply_async(("c",), queue="mail", countdown=60)
    run_jobs(until=timezone.now() + HOUR)
    assert effects() == ["b", "c"]


def test_markers_and_locks_hold(case):
    pays.delay(1)
    pays.delay(1)
    first, second = run_jobs()
    assert (effects(), second.result, second.replay_of) == (["pays:1"], "pays:1", first.pk)
    assert int(Effect.objects.get().note) > 0
    assert Marker.objects.get().job == first.pk


def test_a_body_of_its_own_transactions(case):
    by_itself.delay("a")
    by_itself.delay("c", fails=True)
    run_jobs(raises=False)
    # What it did before it failed was committed.
    assert effects() == ["a", "c"]


@pytest.mark.parametrize("task", [marks_by_itself.s("a"), guards_by_itself.s()])
def test_a_missing_transaction_is_missed_also_in_a_test_case(case, task):
    task.delay()
    with pytest.raises(TransactionManagementError, match=r"with transaction\.atomic\(\)"):
        run_jobs()


def test_it_belongs_outside_of_transactions(case):
    with transaction.atomic():
        leaves.delay("a")
        with pytest.raises(TransactionManagementError, match="after the block"):
            run_jobs()
    run_jobs()
    assert effects() == ["a"]


def test_it_leaves_no_trace(case):
    node, slots = worker_state.node, len(worker_state.occupied())
    pays.delay(1)
    says_how_far_it_is.delay()
    breaks.delay("broken")
    with pytest.raises(LookupError):
        run_jobs()
    assert (worker_state.node, len(worker_state.occupied())) == (node, slots)
    assert not Node.objects.exists()


@pytest.mark.django_db
def test_what_is_kept_beside_transactions_goes_with_a_test_case():
    def look():
        with databases.apart("default") as apart, apart.cursor() as cursor:
            for table in {"jobs_lock", "jobs_stored_result"} & set(apart.introspection.table_names()):
                cursor.execute(f"SELECT * FROM {table}")
                found.extend(cursor.fetchall())

    found = []
    pays.delay(1)
    says_how_far_it_is.delay()
    run_jobs()
    assert Lock.objects.exists()
    assert StoredResult.objects.exists()
    # What another thread sees is committed.
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == []


def test_hooks_of_a_test_case_run_where_django_captures_them(db, django_capture_on_commit_callbacks):
    ran = []

    @shared_task(name=f"{__name__}.hooks")
    def hooks():
        transaction.on_commit(lambda: ran.append("hook"))

    hooks.delay()
    with django_capture_on_commit_callbacks(execute=True):
        run_jobs()
        assert ran == []
    assert ran == ["hook"]


def test_a_statement_that_breaks_the_whole_test_is_explained(db):
    breaks_by_itself.delay("a")
    with pytest.raises(TransactionManagementError, match="TransactionTestCase"):
        run_jobs()


class InOneTransaction(TestCase):
    @classmethod
    def setUpTestData(cls):
        leaves.delay("of the class")
        by_itself.delay("of the class, too")
        run_jobs()

    def test_the_data_of_the_class_stay(self):
        assert effects() == ["of the class", "of the class, too"]
        leaves.delay("of the test")
        run_jobs()
        assert Effect.objects.count() == 3

    def test_and_those_of_a_test_go(self):
        self.test_the_data_of_the_class_stay()


class WithCommits(TransactionTestCase):
    def test_it_runs(self):
        leaves.delay("a")
        run_jobs()
        assert effects() == ["a"]


class WithoutDatabase(SimpleTestCase):
    def test_it_says_so(self):
        with pytest.raises(AssertionError, match="Database"):
            run_jobs()


def test_after_a_test_case_nothing_is_left(transactional_db):
    assert not Job.objects.exists()
    assert not Effect.objects.exists()
    assert not Lock.objects.exists()
    assert not StoredResult.objects.exists()


# capture_jobs(), assert_enqueued(), assert_not_enqueued()


def test_capture_sees_what_is_enqueued_and_what_is_rolled_back(case):
    leaves.delay("before")
    with capture_jobs() as jobs, pytest.raises(ZeroDivisionError), transaction.atomic():
        leaves.apply_async(("a",), queue="mail", countdown=60)
        pays.delay(order=1)
        raise ZeroDivisionError
    leaves.delay("after")
    assert [(job.task, job.args, job.kwargs, job.queue) for job in jobs] == [
        (f"{__name__}.leaves", ["a"], {}, "mail"),
        (f"{__name__}.pays", [], {"order": 1}, current_app.conf.task_default_queue),
    ]
    assert jobs[1].idempotency_key == "pays:1"
    assert abs((jobs[0].run_at - timezone.now()).total_seconds() - 60) < 5
    assert abs((jobs[1].run_at - timezone.now()).total_seconds()) < 5
    assert [job.args for job in Job.objects.order_by("pk")] == [["before"], ["after"]]


def test_captures_may_be_nested(case):
    with capture_jobs() as outer:
        leaves.delay("a")
        with capture_jobs() as inner:
            leaves.delay_many([("b",), ("c",)])
        assert [job.args for job in inner] == [["b"], ["c"]]
    assert [job.args for job in outer] == [["a"], ["b"], ["c"]]
    assert {job.pk for job in outer} == set(Job.objects.values_list("pk", flat=True))


def test_assert_enqueued_finds_what_waits(case):
    key = uuid.uuid4()
    at = timezone.now() + HOUR
    leaves.apply_async((key,), queue="mail", eta=at)
    leaves.delay("b", countdown=1)
    assert [job.queue for job in assert_enqueued(leaves, args=(key,))] == ["mail"]
    assert_enqueued(f"{__name__}.leaves", args=[key], kwargs={}, queue="mail", run_at=at, count=1)
    assert_enqueued(leaves, count=2)
    assert_enqueued(leaves, kwargs={"countdown": 1})
    assert_enqueued(pays, count=0)
    assert_not_enqueued(pays)
    assert_not_enqueued(leaves, args=("b",), queue="mail")
    for unlike in ({"args": ("c",)}, {"kwargs": {"countdown": 2}}, {"queue": "other"}, {"run_at": at + HOUR}):
        assert_not_enqueued(leaves, **unlike)
        with pytest.raises(AssertionError):
            assert_enqueued(leaves, **unlike)


def test_its_error_shows_what_waits_instead(case):
    with pytest.raises(AssertionError, match="Nothing waits"):
        assert_enqueued(leaves)
    leaves.delay("ran")
    run_jobs()
    leaves.delay("a", countdown=2)
    pays.apply_async((uuid.UUID(int=7),), queue="mail", countdown=60)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(leaves, args=("b",), queue="mail")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"no job of {__name__}.leaves with args=('b',), queue='mail'. These wait:"
    queue = current_app.conf.task_default_queue
    assert lines[1] == f"  {__name__}.leaves('a', countdown=2) in {queue!r}, ready"
    begin = f"  {__name__}.pays(UUID('00000000-0000-0000-0000-000000000007')) in 'mail', scheduled for 20"
    assert lines[2].startswith(begin)
    assert lines[3:] == [
        "These ran already:",
        f"  {__name__}.leaves('ran') in {queue!r}, succeeded",
    ]
    with pytest.raises(AssertionError, match=f"1 jobs and not 2 of {__name__}.leaves"):
        assert_enqueued(leaves, count=2)
    with pytest.raises(AssertionError, match=re.escape(f"1 jobs of {__name__}.leaves. These wait:")):
        assert_not_enqueued(leaves)


# Plain calls


def test_a_plain_call_has_a_job_with_a_key(db):
    job = shows(1, 2)
    assert (job.task, job.args, job.kwargs, job._state.adding) == (f"{__name__}.shows", [1, 2], {}, True)
    assert job.idempotency_key == str(job.pk) != shows(1, 2).idempotency_key
    assert not Job.objects.exists()
    assert shows.job is None


def test_each_of_several_plain_calls_has_its_own():
    outer, inner = shows_itself(1)
    assert (outer.args, inner.args) == ([1], [0])
    assert outer.pk != inner.pk


def test_the_key_of_a_plain_call_is_that_of_its_template(db):
    assert pays(5) == pays(order=5) == "pays:5"
    # No marker and no lock: it is a plain call of a function.
    assert effects() == ["pays:5", "pays:5"]
    assert set(Effect.objects.values_list("note", flat=True)) == {"None"}


def test_a_plain_call_takes_what_no_job_could_carry(db):
    thing = object()
    assert shows(thing).args == [thing]


def test_apply_has_the_id_of_its_result():
    result = shows.apply((1,))
    assert (str(result.get().pk), result.get().args) == (result.id, [1])


def test_a_retry_in_apply_keeps_the_key():
    keys = []
    result = patient.apply((keys,))
    assert keys == [(result.id, 0), (result.id, 1), (result.id, 2)]


def test_a_plain_call_in_a_body_has_the_same_key_in_each_run(transactional_db):
    keys = []

    def note(instance, **kwargs):
        # Also of a body that is rolled back.
        keys.append(instance.key)

    post_save.connect(note, sender=Effect)
    try:
        shows_of_others.delay()
        assert len(run_jobs()) == 2
    finally:
        post_save.disconnect(note, sender=Effect)
    assert len(keys) == 4
    assert keys[:2] == keys[2:]
    assert keys[0] != keys[1]


def test_what_steps_out_of_a_plain_call_is_an_exception(db):
    for how, kind in (("snooze", Snooze), ("cancel", Cancel), ("busy", Busy)):
        with pytest.raises(kind):
            steps_out("a", how)
        assert steps_out.apply(("a", how)).state == "IGNORED"


def test_the_tools_work_in_plain_calls(case):
    with transaction.atomic(), once("a", 1) as first, guard(Effect.objects.all()) as rows:
        assert (first, rows) == (True, [])
    with lock("a:1") as token:
        assert token > 0


# The pytest plugin

SAMPLE = """
import pytest

@pytest.mark.django_db
def test_fixtures(run_jobs, capture_jobs, assert_enqueued, assert_not_enqueued):
    from tests import tasks
    with capture_jobs() as jobs:
        tasks.effect.delay("a")
    assert len(jobs) == 1
    assert_enqueued(tasks.effect, args=("a",))
    assert run_jobs().states == {"succeeded": 1}
    assert_not_enqueued(tasks.effect)

@pytest.mark.django_db(transaction=True)
def test_another_fixture(assert_idempotent):
    from tests import tasks
    assert_idempotent(tasks.effect, "a", budget=(0, 0))
"""


def database_url(directory) -> str:
    """On SQLite one without a file for tests: they are in memory, as Django's are by default."""
    url = os.environ.get("DATABASE_URL", "")
    return f"{url}_of_examples" if url.startswith("postgres") else f"sqlite:///{directory}/unused.sqlite3"


def pytest_in(directory, *options, **env):
    # Where the app is installed, it is an entry point.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_jobs", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_the_plugin_has_fixtures_of_the_same_names(tmp_path):
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.entry_points"]["pytest11"].split() == ["jobs", "=", "pytest_jobs"]
    assert "pytest_jobs" in config["options"]["py_modules"]
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    run = pytest_in(tmp_path, "--ds=tests.settings", "--create-db", DATABASE_URL=database_url(tmp_path))
    assert "2 passed" in run.stdout, run.stdout + run.stderr


@pytest.mark.slow
def test_the_examples_of_the_documentation_run(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "howto" / "test.md").read_text(), re.M | re.S)
    assert len(blocks) == 9
    for number, block in enumerate(blocks):
        (tmp_path / f"test_example_{number}.py").write_text(block)
    run = pytest_in(tmp_path, "--ds=tests.settings", "--create-db", DATABASE_URL=database_url(tmp_path))
    assert "16 passed" in run.stdout, run.stdout + run.stderr


def test_the_plugin_costs_nothing_without_django(tmp_path):
    (tmp_path / "test_sample.py").write_text(
        "def test_nothing_is_imported():\n"
        "    import sys\n"
        "    assert 'pytest_jobs' in sys.modules\n"
        "    assert not {'jobs', 'celery', 'kombu'} & set(sys.modules)\n"
    )
    run = pytest_in(tmp_path, "-p", "no:django")
    assert "1 passed" in run.stdout, run.stdout + run.stderr


def test_mails_of_jobs_are_in_the_outbox(case):
    mails.delay()
    run_jobs()
    assert [message.subject for message in mail.outbox] == ["Welcome"]


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_held_keeps_no_other_queue_waiting():
    """A worker held it for its limit."""
    Job.objects.filter(pk=leaves.delay("held").id).update(held=True)
    other = leaves.apply_async(("other",), queue="other")
    assert [job.pk for job in run_jobs()] == [uuid.UUID(other.id)]
