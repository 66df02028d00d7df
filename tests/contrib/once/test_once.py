"""once(): the first transaction of a key alone, whoever waits for it, and whoever rolls back."""

from __future__ import annotations

import enum
import os

import pytest
from celery import shared_task
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from jobs import Busy, once
from jobs.contrib.once.once import joined
from jobs.idempotency import markers
from jobs.models import Marker
from tests.helpers.concurrency import Elsewhere, open_transaction, somebody_waits
from tests.helpers.harness import deliver, effects
from tests.helpers.servers import wait_for
from tests.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


def first_of(*key):
    with transaction.atomic(), once(*key) as first:
        if first:
            Effect.objects.create(key=joined(key, "test"))
    return first


@pytest.mark.database
def test_once_is_true_for_the_first_alone():
    assert first_of("k", 5)
    assert not first_of("k", 5)
    assert effects() == {"k:5": 1}
    assert not first_of("k:5"), "the same key, written as one"
    assert first_of("k", 6)
    assert Marker.objects.filter(kind="once").count() == 2


@pytest.mark.database
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls-back"])
def test_once_waits_for_the_other_transaction(commits):
    with open_transaction(lambda: markers.take("k", "once", "default", None), commits):
        second = Elsewhere(lambda: first_of("k"))
        wait_for(somebody_waits, 10, "the second one waits")
        assert not second.outcome
    assert second.result() is not commits


@pytest.mark.database
def test_a_marker_in_force_holds_nobody_up(settings):
    """Who finds it goes on, in a transaction that may be long; the next one does not wait for that."""
    settings.JOBS = {**settings.JOBS, "MARKER_WAIT": 0.2}
    assert first_of("k")
    if connection.vendor == "postgresql":
        with open_transaction(lambda: markers.take("k", "once", "default", None)):
            assert not first_of("k")


@pytest.mark.database
def test_once_gives_up_and_says_so(settings):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")
    settings.JOBS = {**settings.JOBS, "MARKER_WAIT": 0.2}
    with open_transaction(lambda: markers.take("k", "once", "default", None)):
        with pytest.raises(Busy, match="'k'"):
            first_of("k")
        # The bound was the marker's, and is gone.
        with transaction.atomic(), connection.cursor() as cursor:
            assert first_of("another")
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)


def test_an_exception_takes_the_whole_transaction_back_even_if_it_is_caught():
    with transaction.atomic():
        Effect.objects.create(key="before")
        try:
            with once("k"):
                Effect.objects.create(key="half")
                raise ValueError
        except ValueError:
            pass
    assert effects() == {}
    assert first_of("k")


@shared_task
def once_only_effect(key):
    with once("effect", key) as first:
        if first:
            Effect.objects.create(key=key, pid=os.getpid())
    return first


def test_once_belongs_to_the_job_that_runs(node):
    result = once_only_effect.delay("a")
    deliver(result)
    assert str(Marker.objects.get().job) == result.id
    again = once_only_effect.delay("a")
    assert deliver(again) == ("SUCCESS", False)
    assert effects() == {"a": 1}


def test_once_needs_a_transaction():
    with pytest.raises(TransactionManagementError, match="transaction.atomic"), once("k"):
        pass


@pytest.mark.parametrize(
    ("parts", "error", "text"),
    [
        ((), TypeError, "needs a key"),
        ((None,), TypeError, "whole number"),
        ((1.5,), TypeError, "whole number"),
        (("",), ValueError, "empty"),
        (("a\0b",), ValueError, "NUL"),
        (("x" * 256,), ValueError, "255"),
    ],
)
def test_keys_that_cannot_be_kept(parts, error, text):
    with pytest.raises(error, match=text), transaction.atomic(), once(*parts):
        pass


def test_no_two_lists_of_parts_are_one_key():
    keys = {joined(parts, "") for parts in [("a", "b:c"), ("a:b", "c"), ("a", "b", "c"), ("a:b:c",), ("a\\", "b")]}
    assert len(keys) == 5 - 1  # One part alone is the key as it is: "a:b:c".


class Kind(str, enum.Enum):  # noqa: UP042 (its str() is its name)
    WELCOME = "welcome"


def test_a_member_of_an_enum_is_its_value():
    assert joined((Kind.WELCOME, 5), "the key") == "welcome:5"
    assert joined((Kind.WELCOME,), "the key") == "welcome"
