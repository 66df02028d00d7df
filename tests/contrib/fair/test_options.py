"""The options of fair shares, where a task is declared, where a queue is, and at the call."""

import pytest

from jobs.conf import problems
from jobs.models import Job
from tests import tasks


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fair_key": 7}, "fair_key=7 must be a template such as"),
        ({"fair_key": ""}, "fair_key is empty"),
        ({"fair_key": "{customer_id}"}, "names 'customer_id', which is no argument: it takes user_id"),
    ],
)
def test_a_value_that_cannot_work_is_told_where_it_is_declared(declare, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        declare(**options)


def test_it_is_no_option_of_a_call():
    with pytest.raises(TypeError, match="fair_key= is an option of the task, where it is declared"):
        tasks.effect.apply_async(("a",), fair_key="b")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fairkey": "{a}"}, "has no option 'fairkey': did you mean `fair_key`?"),
        ({"fair_key": 7}, "fair_key=7 must be a template such as"),
        ({"fair_key": "{}"}, "must name the arguments"),
        ({"fair_key": "{a"}, "is no template"),
        ({"weights": ["a"]}, "weights=['a'] must be a dict of keys and whole numbers from 1 to 1000"),
        ({"weights": {"a": 0}}, "must be a dict of keys and whole numbers from 1 to 1000"),
        ({"weights": {7: 2}}, "must be a dict of keys and whole numbers from 1 to 1000"),
    ],
)
def test_settings_that_cannot_work_say_so(settings, options, text):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": options}}
    [problem] = problems()
    assert text in problem


def test_a_queue_may_have_limits_beside_it(settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"fair_key": "{a}", "weights": {"b": 3}, "concurrency": 2}}}
    assert problems() == []


def test_a_call_without_a_key_says_so(declare):
    task = declare(fair_key="{user_id.pk}")
    with pytest.raises(ValueError, match=r"fair_key='\{user_id.pk\}' finds no key in these arguments: 'int' object"):
        task.delay(5)
    with pytest.raises(ValueError, match="fair_key: the key 'x+'... has 300 characters, and 255 are kept"):
        declare(fair_key="{user_id}").delay("x" * 300)
    with pytest.raises(ValueError, match="is empty"):
        declare(fair_key="{user_id}").delay("")


@pytest.mark.django_db
def test_a_callable_makes_the_key(declare):
    declare(fair_key=lambda user_id: f"u{user_id % 10}").delay(123)
    assert Job.objects.get().fair_key == "u3"


@pytest.mark.django_db
def test_the_key_of_a_task_wins_over_that_of_its_queue(declare, settings):
    settings.JOBS = {**settings.JOBS, "QUEUES": {"mail": {"fair_key": "{user_id}"}}}
    declare(fair_key="u{user_id}").apply_async((1,), queue="mail")
    assert Job.objects.get().fair_key == "u1"
