"""Types that an event may have, values of them, and schemas, for several tests."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

from django.db import models
from hypothesis import strategies as st

from jobs.events.schema import Schema


class Status(models.TextChoices):
    PAID = "paid", "Paid"
    OPEN = "open", "Open"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1
    notes: list[str] = field(default_factory=list)
    total: Decimal = field(init=False, default=Decimal(0))


class Address(TypedDict):
    city: str
    code: NotRequired[Annotated[str, "of the post"]]


class Lax(Address, total=False):
    street: str


class Loose(TypedDict, total=False):
    street: str


def one(hint: Any) -> Schema:
    def function(x): ...

    function.__annotations__ = {"x": hint}
    return Schema.of(function, "shop.order.paid")


def handled(function: Any) -> Schema:
    return Schema.of(function, is_handler=True)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé\U0001f600"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)
SOME = st.one_of(
    PLAIN,
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.dates(),
    st.times(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
)
