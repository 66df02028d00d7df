"""The options of limits, where a task is declared."""

import pytest


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
