"""Many jobs are one batch: one bar, one page, and one callback when the last of them has ended."""

from __future__ import annotations

import datetime
import json
import threading
import uuid

import pytest
from celery import chain, group, shared_task
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.template import Context, Template
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs import batch
from jobs.contrib.adoption import activation
from jobs.contrib.batches import batch as batches
from jobs.contrib.batches.models import Batch
from jobs.contrib.console.maintain import to_prune
from jobs.contrib.operations import by_hand
from jobs.contrib.progress import public
from jobs.contrib.pruning.prune import Prune
from jobs.contrib.why import explain as why
from jobs.events import prune as forget
from jobs.events.models import Subscription
from jobs.lifecycle import transitions
from jobs.maintenance import clock
from jobs.models import Action, Job
from tests import tasks
from tests.contrib.batches.making import made
from tests.helpers.harness import Worker, claim, effects, run
from tests.helpers.rows import make
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def finish(key: object, failing: bool = False) -> None:
    job = claim(key)
    if failing:
        transitions.fail(job, transitions.error_entry("ValueError", "no", attempt=job.lease))
    else:
        run(job)


def ticked() -> list[str]:
    """The callbacks that were called so far, of whatever tick."""
    clock.tick()
    return sorted(args[0] for args in Job.objects.filter(task="tests.tasks.effect").values_list("args", flat=True))


def keys_of(found: Batch) -> list[object]:
    return list(found.jobs.order_by("pk").values_list("pk", flat=True))


# The block


def test_the_calls_of_the_block_are_the_batch_and_no_others(node):
    before = tasks.effect.delay("before")
    found = made(3)
    tasks.effect.delay("after")
    assert len(keys_of(found)) == 3
    assert Job.objects.filter(batch=None).count() == 2
    assert Job.objects.get(pk=before.id).batch is None


def test_a_block_that_raises_leaves_nothing():
    with pytest.raises(ZeroDivisionError), batch("broken"):
        tasks.effect.delay("a")
        raise ZeroDivisionError()
    assert (Batch.objects.count(), Job.objects.count()) == (0, 0)
    made(0)


def test_batches_are_not_nested():
    with pytest.raises(RuntimeError, match="nested"), batch("outer"), batch("inner"):
        pass
    assert not Batch.objects.exists()


@pytest.mark.parametrize("callback", [tasks.effect, "tests.tasks.effect", {"task": "x"}])
def test_a_callback_is_a_signature(callback):
    with pytest.raises(TypeError, match="on_success must be a signature"), batch("x", on_success=callback):
        pass


@pytest.mark.parametrize("callback", [tasks.effect.s(), tasks.effect.si("x", nope=1)])
def test_a_callback_that_lacks_arguments_is_refused_where_it_is_written(callback):
    with pytest.raises(TypeError, match="argument"), batch("x", on_failure=callback):
        pass
    assert not Batch.objects.exists()


def test_a_long_name_is_cut():
    with batch("import " + "x" * 300) as found:
        pass
    assert found.name.startswith("import xx")
    assert len(found.name) <= 255


@pytest.mark.slow
def test_another_thread_does_not_join(node):
    with batch("mine") as found:
        thread = threading.Thread(target=lambda: (tasks.effect.apply(("x",)), connections.close_all()))
        if connection.vendor == "postgresql":
            thread = threading.Thread(target=lambda: (tasks.effect.delay("x"), connections.close_all()))
        thread.start()
        thread.join()
    assert keys_of(found) == []


# The end


def test_the_callback_is_called_once_when_all_have_ended(node):
    found = made()
    first, second = keys_of(found)
    assert ticked() == []
    finish(first)
    assert ticked() == []
    finish(second)
    assert [ticked(), ticked()] == [["succeeded"]] * 2
    found.refresh_from_db()
    assert (found.ended_at is not None, found.counts) == (True, {"succeeded": 2})


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_of_a_batch_with_a_failure_that_is_told(how, node):
    found = made()
    first, second = keys_of(found)
    if how == "failed":
        finish(first, failing=True)
    else:
        transitions.cancel(first, "default")
    finish(second)
    assert ticked() == ["failed"]


def test_after_a_retry_it_ends_again_and_success_is_told_once(node):
    found = made()
    first, second = keys_of(found)
    finish(first, failing=True)
    finish(second, failing=True)
    assert ticked() == ["failed"]
    for key in (first, second):
        assert by_hand.retry_by_hand(key, "default")
        assert Batch.objects.get().ended_at is None
        finish(key)
        # The second time of a failure is not told again.
        assert ticked() == (["failed"] if key == first else ["failed", "succeeded"])
    assert Batch.objects.get().counts == {"succeeded": 2}


def test_an_empty_batch_ends_at_once():
    made(0)
    assert ticked() == ["succeeded"]


@pytest.mark.parametrize("callback", [chain(), group([tasks.noop.si(), tasks.passes.si(1)])], ids=["nothing", "group"])
def test_a_callback_may_be_a_group_or_nothing(callback):
    with batch("b", on_success=callback) as found:
        pass
    ticked()
    found.refresh_from_db()
    assert found.ended_at is not None
    assert Job.objects.count() == len(callback.tasks)


def test_of_many_that_look_one_calls(node):
    """Each holds the row while it looks; the second finds it closed."""
    for key in keys_of(made(1)):
        finish(key)
    threads = [
        threading.Thread(target=lambda: (batches.close_ended("default"), connections.close_all())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ticked() == ["succeeded"]


def test_a_callback_that_cannot_be_called_keeps_its_batch_open_and_no_other(node, monkeypatch):
    broken, sound = made(0), made(0)
    Batch.objects.filter(pk=broken.pk).update(on_success={"task": 5})
    assert ticked() == ["succeeded"]
    assert set(Batch.objects.filter(ended_at=None)) == {broken}
    assert Batch.objects.get(pk=sound.pk).ended_at
    batches._later.clear()


# What else belongs to it


def test_the_next_step_of_a_chain_belongs_to_the_batch(node):
    with batch("steps", tasks.effect.si("succeeded")) as found:
        chain(tasks.add.s(1, 2), tasks.add.s(3)).delay()
    [first] = keys_of(found)
    finish(first)
    assert ticked() == []
    second = found.jobs.get(state="ready")
    finish(second.pk)
    assert Job.objects.get(pk=second.pk).result == 6
    assert ticked() == ["succeeded"]


@shared_task(bind=True)
def grows(self, times):
    """Adds to its own batch."""
    with self.job.batch.adding():
        for _ in range(times):
            tasks.part.delay("grown")


def test_a_job_of_it_may_add_to_it(node):
    with batch("grows", tasks.effect.si("succeeded")) as found:
        grows.delay(2)
    for _ in range(3):
        assert ticked() == []
        finish(found.jobs.filter(state="ready")[0].pk)
    assert ticked() == ["succeeded"]
    assert sum(batches.counts(found).values()) == 3


def test_somebody_else_may_add_until_it_has_ended(node):
    found = made(1)
    with found.adding():
        tasks.part.delay("later")
    for key in keys_of(found):
        finish(key)
    assert ticked() == ["succeeded"]
    with pytest.raises(ValueError, match="has ended"), found.adding():
        pass


@shared_task(bind=True, atomic=False)
def grows_by_itself(self):
    with self.job.batch.adding():
        tasks.part.delay("grown")


@pytest.mark.parametrize("how", ["killed", "given to another run"])
def test_a_zombie_adds_nothing(how, node):
    """Race: the batch has ended without it, or will. Nobody rolls back what a body with atomic=False commits."""
    with batch("grows", tasks.effect.si("succeeded")) as found:
        grows_by_itself.delay()
    [key] = keys_of(found)
    job = claim(key)
    if how == "killed":
        assert transitions.cancel_running(Job.objects.get(pk=key), transitions.error_entry("Killed", "x", attempt=1))
        clock.tick()
    else:
        Job.objects.filter(pk=key).update(lease=2)
    run(job)
    assert keys_of(found) == [key]


def test_a_body_without_a_transaction_may_add(node):
    with batch("grows", tasks.effect.si("succeeded")) as found:
        grows_by_itself.delay()
    finish(keys_of(found)[0])
    assert ticked() == []
    finish(found.jobs.get(state="ready").pk)
    assert ticked() == ["succeeded"]


def test_a_plain_call_has_no_batch_and_costs_nothing_more(node):
    with CaptureQueriesContext(connection) as queries:
        tasks.effect.delay("a")
    assert not [query for query in queries if "batch" in query["sql"]]


# A worker


@pytest.mark.core
def test_a_worker_runs_a_batch_and_calls_back():
    with Worker(concurrency=2):
        found = made(50)
        wait_for(lambda: "succeeded" in effects(), 20, "the callback ran")
    assert (effects()["succeeded"], Batch.objects.get(pk=found.pk).counts) == (1, {"succeeded": 50})


# What people see and do


def test_why_says_what_a_batch_waits_for(node, capsys):
    found = made()
    first, second = keys_of(found)
    finish(first)
    call_command("jobs", "why", str(found.pk))
    text = capsys.readouterr().out
    assert "1 of 2 jobs have ended" in text
    assert str(second) in text
    finish(second)
    clock.tick()
    [reason] = why.explain(found.pk)[1]
    callback = Job.objects.get(batch=None)
    assert reason.code == "batch_ended"
    assert f"It called {callback.task}: job {callback.pk}." in reason.says


def test_why_names_no_job_for_a_callback_that_made_none(node):
    """The worker that called it did not know the task, so that the call was a message."""
    found = Batch.objects.create(name="import")
    make("succeeded", batch=found)
    called = {"task": "shop.gone", "id": str(uuid.uuid4())}
    Batch.objects.filter(pk=found.pk).update(
        ended_at=timezone.now(), counts={"succeeded": 1}, called={"on_success": called}
    )
    [reason] = why.explain(found.pk)[1]
    assert "It called shop.gone, and there is no such job" in reason.says
    assert "of 1 job, which has ended." in reason.says
    assert called["id"] not in reason.says + reason.cure
    assert "imports" in reason.cure


def test_why_counts_a_single_job(node):
    found = Batch.objects.create(name="import")
    make("ready", batch=found)
    assert "of 1 job, and it waits" in why.explain(found.pk)[1][0].says


def test_the_page_of_a_batch_names_what_is_to_be_called_and_what_was(staff, node):
    client, found = staff("view_job", "view_batch"), made()
    page = reverse("admin:jobs_batch_change", args=[found.pk])
    assert client.get(page).content.decode().count("tests.tasks.effect") == 2
    for key in keys_of(found):
        finish(key)
    clock.tick()
    callback = Job.objects.get(batch=None)
    text = client.get(page).content.decode()
    assert reverse("admin:jobs_job_change", args=[callback.pk]) in text
    assert "tests.tasks.effect" in text


def test_the_commands_know_batches(node, capsys):
    found, other = made(), make("ready", task="tests.tasks.noop")
    call_command("jobs", "batches", "--json")
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["id"], listed["name"], listed["ready"]) == (str(found.pk), "import 7", 2)
    call_command("jobs", "cancel", "--batch", str(found.pk))
    assert "2 cancelled" in capsys.readouterr().out
    assert Job.objects.get(pk=other.pk).state == "ready"
    assert ticked() == ["failed"]


def test_the_page_of_a_batch_cancels_and_retries_it_as_a_whole(staff, node):
    client = staff("view_job", "view_batch", "cancel_job", "retry_job")
    found, other = made(), make("ready")
    page = reverse("admin:jobs_batch_change", args=[found.pk])
    text = client.get(page).content.decode()
    assert 'value="cancel"' in text
    assert 'value="kill"' not in text
    assert f"?batch={found.pk}&amp;state__exact=ready" in text
    url = f"{reverse('admin:jobs_job_operate')}?batch={found.pk}"
    client.post(url, {"operation": "cancel", "scope": "all", "why": "wrong file"})
    assert batches.counts(found) == {"cancelled": 2}
    assert Job.objects.get(pk=other.pk).state == "ready"
    assert set(Action.objects.values_list("what", "why")) == {("cancel", "wrong file")}
    clock.tick()
    client.post(f"{url}&state__exact=cancelled", {"operation": "retry", "scope": "all"})
    assert batches.counts(Batch.objects.get()) == {"ready": 2}
    assert found.name in client.get(reverse("admin:jobs_job_change", args=[keys_of(found)[0]])).content.decode()


def test_one_bar_for_all_of_it(client, staff, node):
    found = made(4)
    finish(keys_of(found)[0])
    html = Template("{% load jobs %}{% job_progress batch %}").render(Context({"batch": found}))
    assert 'value="25"' in html
    assert "import 7: 1 of 4" in html
    url = reverse("jobs:progress", args=[public.token_of(found)])
    assert client.get(url).json()["percent"] == 25
    page = staff("view_batch").get(reverse("admin:jobs_batch_changelist")).content.decode()
    assert 'value="25"' in page
    assert "1 of 4" in page


def test_batches_are_forgotten_when_their_jobs_are(node):
    made(0)
    clock.tick()
    batches.prune("default")
    assert Batch.objects.exists()
    Batch.objects.update(ended_at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    batches.prune("default")
    assert not Batch.objects.exists()


def test_a_job_of_an_open_batch_is_not_pruned(node):
    found = made()
    finish(keys_of(found)[0])
    Job.objects.filter(state="succeeded").update(finished_at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    assert to_prune()["jobs"] == 0
    assert Prune().run_once()["jobs"] == 0
    finish(keys_of(found)[1])
    clock.tick()
    assert Prune().run_once()["jobs"] == 1


def test_a_failure_is_not_deleted_out_of_an_open_batch(node, capsys):
    found = made()
    first, second = keys_of(found)
    finish(first, failing=True)
    with pytest.raises(CommandError, match="1 of 1 could not be deleted"):
        call_command("jobs", "delete", str(first))
    assert "its batch has not ended" in capsys.readouterr().out
    finish(second)
    assert ticked() == ["failed"]


def test_in_a_copy_of_the_database_whose_jobs_are_cancelled_nobody_is_told(node):
    made()
    assert activation.cancel_all("default") == 2
    assert ticked() == []
    assert Batch.objects.get().counts == {"cancelled": 2}


@pytest.mark.parametrize("how", ["by hand", "by age"])
def test_a_batch_whose_failed_job_is_gone_does_not_succeed(how, node):
    found = made(3)
    first, second, third = keys_of(found)
    finish(first, failing=True)
    finish(second, failing=True)
    finish(third)
    assert ticked() == ["failed"]
    if how == "by hand":
        call_command("jobs", "delete", str(first))
    else:
        Job.objects.filter(pk=first).update(finished_at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        assert Prune().run_once()["jobs"] == 1
    assert by_hand.retry_by_hand(second, "default")
    finish(second)
    assert ticked() == ["failed"]


def test_what_has_succeeded_may_go(node):
    found = made(2)
    first, second = keys_of(found)
    finish(first)
    finish(second, failing=True)
    assert ticked() == ["failed"]
    call_command("jobs", "delete", str(first))
    assert by_hand.retry_by_hand(second, "default")
    finish(second)
    assert ticked() == ["failed", "succeeded"]


def test_in_a_test_of_a_project_the_callback_runs(node):
    from jobs.testing import run_jobs

    made(1)
    run_jobs()
    assert effects()["succeeded"] == 1


@shared_task(bind=True, ignore_result=True)
def adds_after_its_commit(self):
    def later() -> None:
        other = threading.Thread(target=lambda: (batches.close_ended("default"), connections.close_all()))
        other.start()
        other.join()
        with self.job.batch.adding():
            tasks.part.delay("late")

    transaction.on_commit(later)


def test_what_is_added_after_the_commit_joins_no_batch_that_has_ended(node):
    """Another worker closes it between the commit and the hook."""
    with batch("grows", tasks.effect.si("succeeded")) as found:
        adds_after_its_commit.delay()
    finish(keys_of(found)[0])
    assert Batch.objects.get().ended_at
    assert not Job.objects.filter(batch=found.pk, state="ready").exists()


def test_what_is_kept_of_failures_takes_none_out_of_an_open_batch(node):
    found = made(2)
    first, second = keys_of(found)
    finish(first, failing=True)
    Subscription.objects.create(handler=tasks.part.name, pattern="x", keep_failed=0)
    forget._prune_failed("default")
    finish(second)
    assert ticked() == ["failed"]


def test_callbacks_that_cannot_be_called_hold_up_no_other_batch(node, settings):
    settings.JOBS = {**settings.JOBS, "BATCH": 1}
    broken, sound = made(0), made(0)
    Batch.objects.filter(pk=broken.pk).update(on_success={"task": 5})
    for _ in range(5):
        batches.close_ended("default")
    batches._later.clear()
    assert Batch.objects.get(pk=sound.pk).ended_at
    assert Batch.objects.get(pk=broken.pk).ended_at is None


@shared_task(bind=True, ignore_result=True)
def retries_twice(self, key):
    if self.request.retries == 0:
        self.retry(args=("one",), throw=False, countdown=0)
        self.retry(args=("two",), throw=False, countdown=0)


def test_all_that_a_retry_sends_is_of_the_batch(node):
    with batch("twice", tasks.effect.si("succeeded")) as found:
        retries_twice.delay("a")
    run(claim(keys_of(found)[0]))
    assert Job.objects.filter(task=retries_twice.name, batch=found.pk).count() == 2
