"""Settings that cannot work are refused, and each problem names the cure."""

from __future__ import annotations

import datetime

import pytest
from django.core.exceptions import ImproperlyConfigured

from jobs import extensions
from jobs.conf import conf, problems
from tests import tasks


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"HEARTBEAT": 10, "DEAD_AFTER": 12}, "three times"),
        ({"HEARTBEAT": "3"}, "number"),
        ({"BATCH": 1.5}, "whole number"),
        ({"POLL_INTERVAL": -1}, "above 0"),
        ({"UNIQUE_WAIT": float("inf")}, "above 0, and below"),
        ({"UNIQUE_WAIT": datetime.timedelta.max}, "above 0, and below"),
        ({"BATCH": 2**63}, "above 0, and below"),
        ({"EXCLUDE": None}, "a list of texts"),
        ({"EXCLUDE": [None]}, "a list of texts, and not of NoneType"),
        ({"UNIQUE_WAIT": "7 days"}, "number"),
        ({"DATABASES": "default"}, "list"),
        ({"DATABASES": ["nowhere"]}, "nowhere"),
        ({"DATABASES": []}, "at least one"),
        ({"VERSION": "4" * 40}, "at most 32"),
    ],
)
def test_an_unusable_setting_names_the_cure(settings, given, text):
    settings.JOBS = given
    [problem] = problems()
    assert text in problem


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"t.*": {"atomc": False}}, "JOBS['TASKS']['t.*'] has no option 'atomc': did you mean `atomic`? The options"),
        ({"t.*": {"time_limit": 5}}, "has no option 'time_limit'. The options are atomic, max_crashes,"),
        ({"t.*": "atomic"}, "must be a dict of dicts"),
        (["t.*"], "must be a dict of dicts"),
    ],
)
def test_options_that_nobody_knows(settings, given, text):
    settings.JOBS = {"TASKS": given}
    [problem] = problems()
    assert text in problem


def test_the_settings_are_checked_once_and_again_when_one_changes(declare, settings):
    """Not for each task: that took a tenth of a worker's start."""
    settings.JOBS = {"UNIQUE_WAIT": 60.0}
    for _ in range(3):
        declare()
    assert problems.cache_info().misses == 1
    settings.DATABASES = {}
    assert problems() == ["JOBS['DATABASES'] names 'default', which settings.DATABASES does not have."]


def test_an_option_of_a_queue_that_no_extension_reads_is_refused(settings, monkeypatch):
    """Or a limit would hold nothing, and say nothing."""
    monkeypatch.setattr(extensions, "through", lambda door: ())
    settings.JOBS = {"QUEUES": {"mail": {"concurrency": 3}}}
    [problem] = problems()
    assert problem == (
        "JOBS['QUEUES']['mail'] has no option 'concurrency'. Nothing that is installed reads one: leave it out."
    )
    settings.JOBS = {"QUEUES": {"mail": {}}}
    assert (problems(), [*conf().QUEUES]) == ([], ["mail"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"BATCHES": None}, "JOBS has no key 'BATCHES': did you mean `BATCH`?"),
        ({"heartbeat": 5}, "JOBS has no key 'heartbeat': did you mean `HEARTBEAT`?"),
        ({"COLOUR": "blue"}, "JOBS has no key 'COLOUR'."),
        ({"EXCLUDE": "tenant"}, "JOBS['EXCLUDE'] must be a list, not a string."),
    ],
)
def test_a_setting_that_nobody_knows_or_that_cannot_work_names_the_cure(settings, given, text):
    settings.JOBS = given
    [problem] = problems()
    assert problem.startswith(text)


@pytest.mark.django_db
def test_nothing_is_called_with_unknown_settings(settings):
    settings.JOBS = {"RELAI": 1}
    with pytest.raises(ImproperlyConfigured, match="RELAI"):
        tasks.effect.delay("a")
