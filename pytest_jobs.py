"""pytest's fixtures of :mod:`jobs.testing`.

Every pytest of the environment loads this module. So it stands outside of the package, whose import costs 50 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def _of(name: str, note: str = "") -> Any:
    def function() -> Any:
        from jobs import testing

        return getattr(testing, name)

    function.__doc__ = f":func:`jobs.testing.{name}`{note}"
    return pytest.fixture(name=name)(function)


run_jobs = _of("run_jobs")
capture_jobs = _of("capture_jobs")
assert_enqueued = _of("assert_enqueued")
assert_not_enqueued = _of("assert_not_enqueued")
assert_idempotent = _of("assert_idempotent", ", for tests with ``django_db(transaction=True)``.")


@pytest.fixture
def isolation() -> Iterator[None]:
    """What no rollback takes back raises inside of a transaction (:func:`jobs.testing.isolation`)."""
    from jobs import testing

    with testing.isolation():
        yield
