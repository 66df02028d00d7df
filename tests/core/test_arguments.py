"""What may be an argument is decided at the call; each refusal names the argument and the cure."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid

import kombu.utils.json
import pytest
from django.contrib.auth.models import User
from django.db import models
from django.utils.translation import gettext_lazy

from jobs.arguments import normalize
from jobs.models.values import DEPTH, decoded, scrub
from tests import tasks


class Colour(models.TextChoices):
    RED = "red", "Red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((1, 2.5, "x", None, True), [1, 2.5, "x", None, True]),
        (((1, (2,)),), [[1, [2]]]),
        (({"a": (1,)},), [{"a": [1]}]),
        ((Colour.RED, Level.HIGH), ["red", 3]),
        (("ünï\U0001f600",), ["ünï\U0001f600"]),
        ((2**80,), [2**80]),
    ],
)
def test_json_native_values_are_stored_plainly(given, stored):
    args, _ = normalize(given, {})
    assert args == stored
    assert all(type(a) is type(b) for a, b in zip(args, stored, strict=True))


VALUES = [
    datetime.datetime(2030, 1, 2, 3, 4, 5, 678),
    datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC),
    datetime.date(2030, 1, 2),
    datetime.time(3, 4, 5),
    datetime.timedelta(days=-1, seconds=5, microseconds=7),
    decimal.Decimal("1.10"),
    uuid.UUID(int=7),
    b"a\0\xff",
    {"__type__": "a project's own", "__value__": 1},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_types_of_celerys_json_come_back_as_they_were(value):
    given = [value, [{"in": value}]]
    stored, _ = normalize(given, {})
    text = json.dumps(stored)
    assert decoded(json.loads(text)) == given
    # So does a follow-up that Celery sends.
    if not isinstance(value, dict):
        assert kombu.utils.json.loads(text) == given


def test_what_is_decoded_shares_nothing_with_the_row():
    stored = [[1], {"a": [2]}]
    copy = decoded(stored)
    copy[0].append(3)
    copy[1]["a"].append(3)
    assert stored == [[1], {"a": [2]}]


@pytest.mark.parametrize(
    ("value", "error", "cure"),
    [
        (User(pk=1), TypeError, r"\.pk"),
        (User.objects.none(), TypeError, "list of primary keys"),
        ({1, 2}, TypeError, "sorted list"),
        (gettext_lazy("x"), TypeError, "lazy"),
        (object(), TypeError, "pass str, int"),
        ({1: "x"}, TypeError, r"str\(\)"),
        (float("nan"), ValueError, "nan"),
        (float("inf"), ValueError, "inf"),
        ("a\0b", ValueError, "NUL"),
        ("\ud800", ValueError, "surrogate"),
        ({"k\0": 1}, ValueError, "NUL"),
        ("x" * 300_000, ValueError, "MAX_ARGS_BYTES"),
    ],
)
def test_a_refusal_names_the_argument_and_the_cure(value, error, cure):
    with pytest.raises(error, match=cure) as caught:
        normalize((1, value), {}, 262_144)
    assert "args[1]" in str(caught.value) or "arguments are" in str(caught.value)
    with pytest.raises(error, match=cure) as caught:
        normalize((), {"user": [value]}, 262_144)
    assert "user" in str(caught.value) or "arguments are" in str(caught.value)


def test_a_value_that_contains_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        normalize((loop,), {})


def test_args_must_be_a_sequence():
    with pytest.raises(TypeError, match="for one argument"):
        normalize("abc", {})
    with pytest.raises(TypeError, match="dict"):
        normalize((), [1])


def test_a_signature_is_accepted_as_its_dict():
    [[signature]], _ = normalize(([tasks.add.s(1, 2)],), {})
    assert type(signature) is dict
    assert signature["task"] == "tests.tasks.add"


def test_error_text_is_scrubbed_of_what_databases_refuse():
    assert scrub("a\0b\ud800") == "a\\x00b\\ud800"
    for limit in (150, 255, 1000, 20_000):
        assert limit - 40 < len(scrub("x" * 100_000, limit)) <= limit


@pytest.mark.django_db
def test_wrong_arity_raises_at_the_call():
    with pytest.raises(TypeError, match="missing 1 required"):
        tasks.add.delay(1)
    with pytest.raises(TypeError, match="takes 2 positional"):
        tasks.add.delay(1, 2, 3)
    with pytest.raises(TypeError, match="unexpected keyword"):
        tasks.add.delay(1, z=2)


def nested(depth: int) -> list:
    return [nested(depth - 1)] if depth else ["s3cret"]


@pytest.mark.django_db
def test_how_deep_arguments_may_be_nested():
    with pytest.raises(ValueError, match=f"args is nested too deeply \\({DEPTH} levels"):
        tasks.noop.delay(nested(DEPTH))
    deep = nested(DEPTH - 3)
    assert len(tasks.noop.delay_many([[deep], {"note": deep}])) == 2


@pytest.mark.parametrize(
    "how", [{"args": [nested(800)]}, {"kwargs": {"x": nested(800)}}, {"headers": {"x": nested(800)}}]
)
@pytest.mark.django_db
def test_what_is_nested_too_deeply_is_refused(how):
    with pytest.raises(ValueError, match="nested too deeply"):
        tasks.noop.apply_async(**how)
