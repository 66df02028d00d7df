"""A consumer's test: do the events that another service tells of fit its handlers?"""

from __future__ import annotations

import datetime
import json
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.contrib.event_contracts.fits import misfits
from jobs.events.schema import KINDS, Schema
from jobs.testing import assert_fits
from tests.contrib.events.shapes import SOME, Address, Lax, Line, Loose, Status, handled, one
from tests.contrib.events.tasks import note_moved, thing_moved


def schema_of(**hints: Any) -> dict[str, Any]:
    """A producer's JSON Schema; all its fields are required."""

    def function(): ...

    function.__annotations__ = hints
    body = ", ".join(hints)
    scope: dict[str, Any] = {}
    exec(f"def function({body}): ...", scope)
    scope["function"].__annotations__ = hints
    return Schema.of(scope["function"]).json_schema("shop.order.paid", 1)


@given(given_kind=st.sampled_from([*KINDS]), taken_kind=st.sampled_from([*KINDS]), value=SOME)
def test_a_producer_without_misfits_sends_nothing_that_does_not_fit(given_kind, taken_kind, value):
    producer, handler = one(given_kind), one(taken_kind)
    try:
        data = producer.dump({"x": value})
    except (TypeError, ValueError):
        return
    if not misfits(producer.json_schema("a", 1), handler):
        handler.load(data)


@pytest.mark.parametrize(
    ("given", "taken", "said"),
    [
        (int, int, None),
        (int, float, None),
        (float, int, "`x` may be a number, and the handler takes an integer."),
        (bool, int, "`x` may be true or false, and the handler takes an integer."),
        (int, Any, None),
        (Any, int, "`x` may be anything, and the handler takes an integer."),
        (int | None, int, "`x` may be null, and the handler takes an integer."),
        (int, int | None, None),
        (str, datetime.date, "`x` may be a string, and the handler takes a string (date)."),
        (datetime.date, str, None),
        (Literal["paid"], Status, None),
        (Status, Literal["paid", "lost"], '`x` may be "open", and the handler takes "paid" or "lost".'),
        (Status, str, None),
        (str, Status, '`x` may be a string, and the handler takes "paid" or "open".'),
        (Literal[True], Literal[1], "`x` may be true, and the handler takes 1."),
        (list[int], list[str], "`x[]` may be an integer, and the handler takes a string."),
        (list[int] | None, list[str] | None, "`x[]` may be an integer, and the handler takes a string."),
        (dict[str, int], dict[str, str], "`x.*` may be an integer, and the handler takes a string."),
        (Line, Line, None),
        (Address, Line, "`x.sku` is required, and the producer does not have it."),
        (Lax, Address, None),
        (dict[str, int], Loose, "`x.street` may be an integer, and the handler takes a string."),
        (dict[str, str], Address, "`x.city` is required, and the producer does not have it."),
    ],
)
def test_each_way_in_which_a_producer_does_not_fit_is_a_sentence(given, taken, said):
    found = misfits(schema_of(x=given), one(taken))
    assert found[:1] == ([said] if said else [])


def test_fields_that_a_producer_adds_and_that_a_handler_does_not_need_are_no_misfits():
    def award(order_id: int, note: str = ""): ...

    assert misfits(schema_of(order_id=int, cents=int), handled(award)) == []
    assert misfits(schema_of(cents=int), handled(award)) == [
        "`order_id` is required, and the producer does not have it."
    ]
    assert misfits(schema_of(order_id=int, note=int), handled(award)) == [
        "`note` may be an integer, and the handler takes a string."
    ]


def test_a_field_that_a_producer_may_leave_out_is_a_misfit():
    def paid(order_id: int = 1): ...

    found = misfits({**schema_of(x=int), "required": []}, one(int))
    assert found == ["`x` is required, and the producer may leave it out."]
    assert misfits(Schema.of(paid).json_schema("a", 1), handled(paid)) == []


def test_schemas_that_others_wrote_are_understood():
    written = {
        "$defs": {"line": {"type": "object", "properties": {"sku": {"const": "a"}}, "required": ["sku"]}},
        "type": "object",
        "properties": {"x": {"oneOf": [{"$ref": "#/$defs/line"}, {"type": ["integer", "null"]}]}},
        "required": ["x"],
    }
    assert misfits(written, one(Address | int | None)) == ["`x.city` is required, and the producer does not have it."]
    assert misfits(written, one(TypedDict("Sku", {"sku": str}) | int)) == [
        "`x` may be null, and the handler takes an object or an integer."
    ]


def test_a_consumer_s_test_says_when_a_producer_breaks_it(tmp_path):
    schema = thing_moved.schema.json_schema("test.thing.moved", 1)
    assert_fits(note_moved, schema)
    schema["properties"]["number"] = {"type": "string"}
    schema["required"].remove("name")
    (tmp_path / "moved.json").write_text(json.dumps(schema))
    with pytest.raises(AssertionError) as raised:
        assert_fits(note_moved, tmp_path / "moved.json")
    assert str(raised.value).splitlines() == [
        "tests.contrib.events.tasks.note_moved does not fit test.thing.moved, version 1:",
        "* `name` is required, and the producer may leave it out.",
        "* `number` may be a string, and the handler takes an integer.",
    ]
