"""Which tags a call has."""

import uuid

import pytest
from celery import chain

import jobs
from jobs.models import Job
from jobs.testing import run_jobs
from tests import tasks
from tests.contrib.tags import tasks as own

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def tags_of(key):
    [job] = [job for job in Job.objects.all() if job.args == [key]]
    return job.tags


def test_a_call_says_its_tags(django_assert_num_queries):
    key = uuid.uuid4()
    with django_assert_num_queries(1):
        tasks.effect.apply_async(("a",), tags={"user": 5, "order": key})
    job = Job.objects.get()
    assert job.tags == {"user": "5", "order": str(key)}


def test_a_job_without_tags_has_none_of_it():
    tasks.effect.delay("a")
    tasks.effect.apply_async(("b",), tags={})
    assert Job.objects.filter(tags__isnull=True).count() == 2


def test_many_calls_have_them_too():
    tasks.effect.delay_many([("a",), ("b",)], tags={"user": 5})
    assert [job.tags for job in Job.objects.all()] == [{"user": "5"}] * 2


def test_a_task_says_what_its_jobs_are_about():
    own.about.delay(7)
    assert Job.objects.get().tags == {"user": "7", "team": "billing"}


def test_the_call_wins_over_the_task_and_the_task_over_the_block():
    with jobs.tagged(user=1, team="none", region="eu"):
        own.about.apply_async((7,), tags={"team": "sales"})
    assert Job.objects.get().tags == {"user": "7", "team": "sales", "region": "eu"}


def test_blocks_add_up_and_end():
    with jobs.tagged(user=1):
        with jobs.tagged(team="a"):
            tasks.effect.delay("inner")
        tasks.effect.delay("outer")
    tasks.effect.delay("after")
    assert [tags_of(key) for key in ("inner", "outer", "after")] == [{"user": "1", "team": "a"}, {"user": "1"}, None]


def test_calls_of_bodies_inherit_those_of_their_job():
    with jobs.tagged(user=5):
        own.calls.delay("a")
    run_jobs()
    assert tags_of("a-inner") == {"user": "5"}
    assert tags_of("a-block") == {"user": "5", "step": "two"}


def test_a_block_around_a_run_says_nothing_of_the_calls_in_it():
    own.calls.delay("a")
    with jobs.tagged(user=5):
        run_jobs()
    assert tags_of("a-inner") is None


def test_what_follows_a_job_inherits_them():
    with jobs.tagged(user=5):
        chain(tasks.effect.si("a"), tasks.effect.si("b").set(tags={"step": 2})).delay()
    run_jobs()
    assert tags_of("b") == {"user": "5", "step": "2"}


def test_a_retry_with_other_arguments_has_the_tags_and_the_turn_of_those(declare):
    def body(self, user_id):
        raise self.retry(args=(6,))

    moves_on = declare(body=body, bind=True, tags={"user": "{user_id}"}, fair_key="{user_id}")
    moves_on.apply_async((5,), tags={"order": 1})
    run_jobs(limit=1)
    job = Job.objects.get()
    assert (job.args, job.tags, job.fair_key) == ([6], {"user": "6", "order": "1"}, "6")


def test_the_body_sees_them_and_a_retry_keeps_them(declare):
    seen = []

    def body(self):
        seen.append(self.job.tags)
        if not self.request.retries:
            raise self.retry(countdown=0)

    declare(body=body, bind=True).apply_async(tags={"user": 5})
    run_jobs()
    assert seen == [{"user": "5"}] * 2


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ("user", "tags='user' must be a dict of names and texts"),
        ({"a b": 1}, "'a b' must be a name of at most 50 letters"),
        ({"user": None}, "user=None cannot be a tag: pass text, a whole number or a UUID"),
        ({"user": True}, "user=True cannot be a tag"),
        ({"user": ""}, "user is empty"),
        ({"user": "x" * 250}, "has 261 characters, and 255 characters of JSON are kept"),
        ({"user": "a\0"}, "contains a NUL"),
    ],
)
def test_what_cannot_be_a_tag_is_told_at_the_call(tags, text):
    with pytest.raises((TypeError, ValueError), match=text):
        tasks.effect.apply_async(("a",), tags=tags)
    assert not Job.objects.exists()


def test_a_task_says_what_is_wrong_where_it_is_declared(declare):
    with pytest.raises(ValueError, match="names 'customer', which is no argument"):
        declare(tags={"user": "{customer}"})
    with pytest.raises(TypeError, match="must be a dict of names and templates"):
        declare(tags="user")
