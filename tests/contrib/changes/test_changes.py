"""``jobs.cancel()``, ``retry()``, ``kill()``, ``delete()`` and ``move()``."""

import datetime
import uuid

import pytest
from celery import current_app
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

import jobs
from jobs.models import Action, Job
from jobs.testing import run_jobs
from tests import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def states():
    return {job.args[0]: str(job.state) for job in Job.objects.all() if job.args}


@pytest.fixture
def four():
    found = [tasks.effect.apply_async((key,), tags={"user": number}) for number, key in enumerate("abc")]
    return [*found, tasks.noop.delay("d")]


def test_jobs_of_a_tag_are_cancelled_and_their_history_says_who_and_why(four):
    user = User.objects.create_user("ada")
    assert jobs.cancel(tags={"user": 1}, by=user, reason="left us") == (1, {})
    assert states() == {"a": "ready", "b": "cancelled", "c": "ready", "d": "ready"}
    [action] = Action.objects.all()
    assert (str(action.job), action.what, action.by, action.why) == (four[1].id, "cancel", "ada", "left us")


@pytest.mark.parametrize(
    "which",
    [
        lambda found: found[0],
        lambda found: found[0].id,
        lambda found: uuid.UUID(found[0].id),
        lambda found: found[0].id[-8:],
        lambda found: Job.objects.get(pk=found[0].id),
        lambda found: Job.objects.filter(pk=found[0].id),
        lambda found: [found[0].id, found[0]],
    ],
    ids="result text uuid digits job queryset several".split(),
)
def test_which(four, which):
    assert jobs.cancel(which(four)) == (1, {})
    assert states() == {"a": "cancelled", "b": "ready", "c": "ready", "d": "ready"}


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"task": tasks.noop}, "d"),
        ({"task": "tests.tasks.effect"}, "abc"),
        ({"task": "tests.tasks.*", "tags": {"user": 2}}, "c"),
        ({"queue": current_app.conf.task_default_queue}, "abcd"),
        ({"queue": "mail"}, ""),
        ({"node": uuid.UUID(int=7)}, ""),
        ({"since": datetime.timedelta(hours=1)}, "abcd"),
        ({"until": timezone.now() - datetime.timedelta(hours=1)}, ""),
        ({"since": "2h", "task": tasks.noop}, "d"),
        ({"state": "ready", "tags": {"user": 0}}, "a"),
        ({"state": ["running", "scheduled"]}, ""),
    ],
)
def test_fields(four, fields, keys):
    assert jobs.cancel(**fields, dry_run=True).done == len(keys)
    assert {*states().values()} == {"ready"}
    assert jobs.cancel(**fields).done == len(keys)
    assert {key for key, state in states().items() if state == "cancelled"} == {*keys}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, r"jobs.cancel\(\) needs to know which jobs"),
        ({"which": [], "queue": "celery"}, "needs to know which jobs"),
        ({"quueue": "celery"}, "quueue= is unknown: did you mean `queue`?"),
        ({"queue": " "}, "queue= is empty"),
        ({"state": []}, "state= is empty"),
        ({"state": ()}, "state= is empty"),
        ({"queue": None}, "would mean all jobs"),
        ({"tags": {}}, "would mean all jobs"),
        ({"tags": ["user"]}, "pass names with their values, {'user': 5}"),
        ({"task": "efect"}, "there is no task, and no job, of the name 'efect'; did you mean tests.tasks.effect"),
        ({"state": "redy"}, "state='redy' is none: scheduled, ready"),
        ({"since": "soon"}, "is no moment"),
        ({"which": "nothing"}, "'nothing' is no valid UUID"),
        ({"which": 7}, "7 is no job"),
        ({"which": User.objects.all()}, "User is no job"),
    ],
)
def test_what_says_nothing_changes_nothing(four, fields, text):
    with pytest.raises((TypeError, ValueError), match=text):
        jobs.cancel(**fields)
    assert {*states().values()} == {"ready"}


def test_the_others_say_why(four):
    jobs.cancel(four[0])
    done, refused = jobs.cancel(four[:2])
    assert done == 1
    assert refused == {uuid.UUID(four[0].id): "is cancelled: nothing to cancel"}


def test_retry_move_and_delete(four):
    jobs.cancel(tags={"user": 0})
    assert jobs.retry(tags={"user": 0}).done == 0, "by a filter only failed ones are meant"
    assert jobs.retry(tags={"user": 0}, state="cancelled").done == 1
    with pytest.raises(ValueError, match="1 to 255 characters"):
        jobs.move(task=tasks.noop, to="x" * 300)
    assert jobs.move(task=tasks.noop, to="bulk").done == 1
    assert Job.objects.get(queue="bulk").args == ["d"]
    run_jobs()
    assert jobs.delete(tags={"user": 0}).done == 1
    assert "a" not in states()


def test_it_is_part_of_the_transaction(four):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        jobs.cancel(four)
        1 / 0  # noqa: B018
    assert {*states().values()} == {"ready"}


def test_in_a_body_its_job_did_it(declare):
    later = tasks.effect.apply_async(("a",), countdown=60)

    def body():
        return jobs.cancel(later).done

    result = declare(name="tests.changes.leaves", body=body).delay()
    run_jobs()
    assert states()["a"] == "cancelled"
    assert Action.objects.get().by == f"tests.changes.leaves[{result.id}]"
