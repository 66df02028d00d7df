"""The bodies of a canvas see what they would have seen with Celery."""

from __future__ import annotations

from decimal import Decimal

import pytest
from celery import chain, chord, group

from tests.helpers.parity import ID, LINKS, ids_replaced, resolve, seen_by_ours, seen_by_stock

pytestmark = pytest.mark.django_db(transaction=True)


CANVAS = {
    "chain": lambda add: chain(add.s(1, 2), add.s(3), add.s(4)),
    "group": lambda add: group(add.s(1, 1), add.s(2, 2), add.s(3, 3)),
    "group in a chain": lambda add: chain(add.s(1, 2), group(add.s(3), add.s(4))),
    "immutable": lambda add: chain(add.si(1, 2), add.si(3, 4)),
    "a chain of decimals": lambda add: chain(add.s(Decimal(1), 2), add.s(Decimal("0.5"))),
    "link on a chain": lambda add: chain(add.s(1, 2), add.s(3)).on_error(add.si(0, 0)),
    "chord": lambda add: chord([add.s(1, 1), add.s(2, 2)], add.si(5, 6)),
    "set": lambda add: add.s(1).set(queue="mail", priority=4),
}


@pytest.mark.parametrize("name", CANVAS)
def test_the_bodies_of_a_canvas_see_what_they_would_have_seen(stock, ours, node, name):
    def call(app):
        CANVAS[name](app.tasks["parity.add"]).apply_async()

    expected = seen_by_stock(stock, call)
    sees = seen_by_ours(ours, call)
    assert ids_replaced(sees) == ids_replaced(expected)
    assert len(sees) >= 2 or name == "set"


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("task", ["add", "limited", "routed"])
def test_the_bodies_of_links_see_what_they_would_have_seen(stock, ours, node, name, task):
    def call(app):
        app.tasks[f"parity.{task}"].apply_async((1,), task_id=ID, **resolve(app, LINKS[name]))

    expected = seen_by_stock(stock, call)
    sees = seen_by_ours(ours, call)
    assert sees[0] == expected[0]
    assert ids_replaced(sees) == ids_replaced(expected), "and those of its links"
    assert len(sees) > 1 or task == "limited"
