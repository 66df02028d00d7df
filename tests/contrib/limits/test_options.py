"""The options of limits, where a task is declared."""

import pytest

from jobs.conf import problems
from tests import tasks


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": "3"}, "concurrency='3' must be a whole number"),
        ({"concurrency": 0}, "concurrency=0 must be a whole number from 1"),
        ({"rate": "100 a minute"}, "rate='100 a minute' must be a number and its time"),
        ({"rate": "1000000/s"}, "and less than 1000000$"),
        ({"rate_limit": "often"}, "rate='often' must be a number and its time"),
        ({"limit_key": "{key}"}, "limit_key= needs concurrency= or rate="),
    ],
)
def test_a_value_that_cannot_work_is_told_where_it_is_declared(declare, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        declare(**options)


def test_a_typo_names_the_option_that_was_meant(declare, settings):
    with pytest.raises(TypeError, match="concurency= is no option of a task: did you mean `concurrency`"):
        declare(concurency=3)
    settings.JOBS = {**settings.JOBS, "TASKS": {"t.*": {"limitkey": "{a}"}}}
    [problem] = problems()
    assert "has no option 'limitkey': did you mean `limit_key`?" in problem


@pytest.mark.parametrize("name", ["concurrency", "rate", "limit_key"])
def test_an_option_of_the_task_is_none_of_a_call(name):
    with pytest.raises(TypeError, match=f"{name}= is an option of the task, where it is declared"):
        tasks.effect.apply_async(("a",), **{name: 5})


def test_the_settings_may_limit_a_task_whose_code_is_not_yours(declare, settings):
    settings.JOBS = {**settings.JOBS, "TASKS": {"theirs.*": {"concurrency": 2, "limit_key": "{user_id}"}}}
    task = declare(name="theirs.send")
    assert (task.claim_limit.slots, task.key_templates["limit_key"].template) == (2, "{user_id}")
