"""What an event says is its function's signature: what fits it goes to JSON and comes back, and nothing else does."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.events.schema import KINDS, Misfit, Schema
from tests.contrib.events.shapes import SOME, Address, Lax, Level, Line, Status, handled, one

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Node:
    inner: list[Node]


Cents = NewType("Cents", int)
MOMENT = datetime.datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


def everything(
    order_id: int,
    text: str,
    ratio: float,
    is_new: bool,
    nothing: None,
    whatever: Any,
    at: datetime.datetime,
    day: datetime.date,
    hour: datetime.time,
    amount: Decimal,
    key: UUID,
    lines: list[Line],
    counts: dict[str, int],
    tags: tuple[str, ...],
    mode: Literal["a", 1, None],
    status: Status,
    level: Level,
    address: Address | None,
    when: str | datetime.date,
    cents: Annotated[Cents, "in euro cents"] = Cents(5),
    unsaid=None,
):
    raise NotImplementedError


VALUES: dict[str, Any] = {
    "order_id": 2**70,
    "text": "ünï\U0001f600",
    "ratio": 0.5,
    "is_new": True,
    "nothing": None,
    "whatever": {"a": [1, "x", None]},
    "at": MOMENT,
    "day": datetime.date(2030, 1, 2),
    "hour": datetime.time(3, 4, 5, 6),
    "amount": Decimal("1.10"),
    "key": UUID(int=7),
    "lines": [Line("a", Decimal("9.99"), 2), Line("b", Decimal(1), notes=["fragile"])],
    "counts": {"a": 1},
    "tags": ("x", "y"),
    "mode": 1,
    "status": Status.PAID,
    "level": Level.HIGH,
    "address": {"city": "Köln"},
    "when": datetime.date(2030, 1, 2),
    "cents": 7,
    "unsaid": [1, 2.5],
}


def test_every_type_goes_to_json_and_comes_back():
    schema = Schema.of(everything)
    data = schema.dump(VALUES)
    assert data["at"] == "2030-01-02T03:04:05.000678+02:00"
    assert (data["day"], data["hour"], data["amount"]) == ("2030-01-02", "03:04:05.000006", "1.10")
    assert data["lines"][1] == {"sku": "b", "price": "1", "count": 1, "notes": ["fragile"]}
    assert (data["status"], data["level"], data["tags"]) == ("paid", 2, ["x", "y"])
    assert schema.load(data) == VALUES
    assert type(schema.load(data)["status"]) is Status


def test_json_schema_is_valid_and_accepts_what_is_dumped():
    schema = Schema.of(everything)
    written = schema.json_schema("shop.order.paid", 2)
    jsonschema.Draft202012Validator.check_schema(written)
    validator = jsonschema.Draft202012Validator(written, format_checker=jsonschema.FormatChecker())
    validator.validate(schema.dump(VALUES))
    assert written["title"] == "shop.order.paid, version 2"
    assert written["$id"] == "shop.order.paid.v2.json"
    assert written["additionalProperties"] is True
    assert set(written["properties"]) - set(written["required"]) == {"cents", "unsaid"}
    assert written["properties"]["at"] == {"type": "string", "format": "date-time"}
    assert not validator.is_valid({**schema.dump(VALUES), "key": "no uuid"})


@given(kind=st.sampled_from([*KINDS]), value=SOME)
def test_what_is_accepted_is_json_of_its_schema_and_comes_back(kind, value):
    schema = one(kind)
    try:
        data = schema.dump({"x": value})
    except (TypeError, ValueError):
        return
    jsonschema.validate(data, schema.json_schema("a", 1), jsonschema.Draft202012Validator)
    assert schema.load(data) == {"x": value}
    assert not isinstance(value, bool) or kind in (bool, Any)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, True, "x: expected int, found bool"),
        (int, 1.0, "x: expected int, found float"),
        (int, "1", "x: expected int, found str"),
        (bool, 1, "x: expected bool, found int"),
        (float, False, "x: expected float, found bool"),
        (str, None, "x: expected str, found NoneType"),
        (datetime.date, MOMENT, "x: expected date, found datetime"),
        (Decimal, 1.5, "x: expected Decimal, found float"),
        (UUID, str(UUID(int=7)), "x: expected UUID, found str"),
        (list[Line], [Line("a", 1.5)], r"x\[0\].price: expected Decimal, found float"),  # type: ignore[arg-type]
        (dict[str, int], {"a": "b"}, r"x\['a'\]: expected int, found str"),
        (dict[str, int], {1: 1}, "a key of x: expected str, found int"),
        (Line, {"sku": "a"}, "x: expected Line, found dict"),
        (Address, {"code": "1"}, "x.city is missing: expected str"),
        (Address, {"city": "a", "cod": "1"}, "x.cod: there is no such field: did you mean `code`?"),
        (int | None, "1", "x: expected int, found str"),
        (int | str, [], "x: expected int or str, found list"),
        (Any, UUID(int=7), "x: UUID is not JSON: annotate the parameter with its type"),
        (Any, [{1, 2}], r"x\[0\]: set is not JSON"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_path(hint, value, message):
    with pytest.raises(TypeError, match=f"^shop.order.paid: {message}"):
        one(hint).dump({"x": value})


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (float, float("nan"), "x is nan"),
        (float, 10**400, "int too large"),
        (Any, {"a": float("inf")}, r"x\['a'\] is inf"),
        (str, "a\0", "x contains a NUL character"),
        (str, "\ud800", "x contains a lone surrogate"),
        (datetime.datetime, MOMENT.replace(tzinfo=None), r"x: a naive datetime is no moment: .*make_aware\(\)"),
        (datetime.time, datetime.time(1, tzinfo=datetime.UTC), "x: a time of day has no time zone"),
        (Decimal, Decimal("NaN"), "x: NaN is no number"),
        (Literal["a", 1], True, "x: expected one of 'a', 1, found True"),
        (Status, "lost", "x: expected one of 'paid', 'open', found 'lost'"),
    ],
)
def test_a_value_that_json_or_a_database_would_not_take_is_refused(hint, value, message):
    with pytest.raises(ValueError, match=f"^shop.order.paid: {message}"):
        one(hint).dump({"x": value})


def test_data_that_contains_itself_is_refused():
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="shop.order.paid: maximum recursion"):
        one(Any).dump({"x": circle})


def test_what_a_model_holds_of_choices_is_fine():
    assert one(Status).dump({"x": "paid"}) == one(Status).dump({"x": Status.PAID}) == {"x": "paid"}


def test_an_offset_with_seconds_becomes_utc():
    value = datetime.datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Amsterdam"))
    data = one(datetime.datetime).dump({"x": value})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", data["x"])
    assert one(datetime.datetime).load(data) == {"x": value}


@pytest.mark.parametrize("hint", [int | float, float | int, str | datetime.date, datetime.date | str, Any | int])
@pytest.mark.parametrize("value", [1, 1.5, "x", datetime.date(2030, 1, 2)])
def test_the_order_of_a_union_does_not_matter(hint, value):
    try:
        data = one(hint).dump({"x": value})
    except TypeError:
        return
    loaded = one(hint).load(data)["x"]
    assert (loaded, type(loaded)) == (value, type(value))


def test_binding_is_a_call():
    def paid(order_id: int, cents: int = 5, *, note: str = ""): ...

    schema = Schema.of(paid, "shop.order.paid")
    assert schema.bind((1,), {"note": "x"}) == {"order_id": 1, "cents": 5, "note": "x"}
    with pytest.raises(TypeError, match="^shop.order.paid has no parameter cent: did you mean `cents`?"):
        schema.bind((1,), {"cent": 2})
    with pytest.raises(TypeError, match="^shop.order.paid: missing a required argument: 'order_id'"):
        schema.bind((), {})
    with pytest.raises(TypeError, match=r"^shop.order.paid: too many positional .* \(its parameters: order_id, cents"):
        schema.bind((1, 2, 3), {})


def test_the_parameter_of_a_bound_handler_is_left_out():
    def award(self, order_id: int): ...

    assert list(Schema.of(award, is_handler=True, is_bound=True).fields) == ["order_id"]
    assert Schema.of(award, is_handler=True, is_bound=True).load({"order_id": 1}) == {"order_id": 1}


def starred(order_id, *rest): ...
def keywords(order_id, **rest): ...
def positional(order_id, /): ...
def complexes(x: complex): ...
def sets(x: list[set[int]]): ...
def numbered(x: dict[int, str]): ...
def pair(x: tuple[int, str]): ...
def recursive(x: Node): ...
def hidden(x: Fraction): ...
def implicit(x: int = None): ...  # type: ignore[assignment]  # noqa: RUF013


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (starred, r"starred\(\): the parameter rest stands for fields without a name: name each field"),
        (keywords, r"keywords\(\): the parameter rest stands for fields without a name"),
        (positional, "the parameter order_id is positional only, .*: take the / out"),
        (complexes, "the parameter x is annotated with <class 'complex'>, .*: use str, int, float, .*dataclasses"),
        (sets, r"the parameter x is annotated with set\[int\]"),
        (numbered, r"the parameter x is annotated with dict\[int, str\]"),
        (pair, r"the parameter x is annotated with tuple\[int, str\]"),
        (recursive, r"the parameter x.inner contains itself \(Node\)"),
        (hidden, r"hidden\(\): name 'Fraction' is not defined, .* outside of `if TYPE_CHECKING`"),
        (implicit, "the parameter x has a default that does not fit its annotation: x: expected int, found NoneType"),
    ],
)
def test_a_signature_that_no_event_can_have_is_refused_where_it_is_declared(function, message):
    with pytest.raises(TypeError, match=message):
        Schema.of(function)


def test_a_handler_takes_only_what_it_has_parameters_for():
    def award(order_id: int, note: str = "none"): ...

    assert handled(award).load({"order_id": 1, "cents": 5}) == {"order_id": 1}


def test_a_handler_with_kwargs_takes_everything():
    assert handled(keywords).load({"order_id": 1, "cents": 5, "day": "x"}) == {"order_id": 1, "cents": 5, "day": "x"}


def test_values_without_a_name_go_by_the_order_of_the_parameters():
    def award(order_id: int, at: datetime.date, *, cents: int = 1): ...

    data = handled(award).load({"cents": 5}, [3, "2030-01-02"])
    assert data == {"order_id": 3, "at": datetime.date(2030, 1, 2), "cents": 5}
    with pytest.raises(Misfit, match=r"award\(\): 3 values have no name, and the handler takes 2 by position"):
        handled(award).load({}, [3, "2030-01-02", 5])


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, 1.5, "x: expected int, found float"),
        (datetime.datetime, "2030-01-02T03:04:05", r"x: expected datetime \(date-time\), found '2030"),
        (datetime.date, "tomorrow", r"x: expected date \(date\), found 'tomorrow'"),
        (UUID, 7, "x: expected UUID, found int"),
        (Decimal, "Infinity", r"x: expected Decimal \(decimal\), found 'Infinity'"),
        (Decimal, "much", r"x: expected Decimal \(decimal\), found 'much'"),
        (Level, 3, "x: expected one of 1, 2, found 3"),
        (Line, {"sku": "a"}, "x.price is missing: expected Decimal"),
        (list[Address], [{"city": 1}], r"x\[0\].city: expected str, found int"),
    ],
)
def test_data_that_does_not_fit_says_where(hint, value, message):
    with pytest.raises(Misfit, match=f"^shop.order.paid: {message}"):
        one(hint).load({"x": value})


def test_a_missing_field_is_a_misfit():
    with pytest.raises(Misfit, match="shop.order.paid: x is missing: expected int"):
        one(int).load({})


@pytest.mark.parametrize(
    "text", ["2030-01-02T01:04:05Z", "2030-01-02t01:04:05.000000123z", "2030-01-02T03:04:05+02:00"]
)
def test_moments_of_other_languages_are_understood(text):
    assert one(datetime.datetime).load({"x": text})["x"] == MOMENT.replace(microsecond=0)


def test_a_whole_number_of_another_language_is_an_int():
    assert type(one(int).load({"x": 3.0})["x"]) is int


def test_marks_of_a_typed_dict_count_although_its_annotations_are_strings():
    required = one(Lax).json_schema("a", 1)["properties"]["x"]["required"]
    assert required == ["city"]
