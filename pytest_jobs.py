"""pytest's fixtures of :mod:`jobs.testing`.

Every pytest of the environment loads this module. So it stands outside of the package, whose import costs 50 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def run_jobs() -> Callable[..., Any]:
    """:func:`jobs.testing.run_jobs`"""
    from jobs import testing

    return testing.run_jobs


@pytest.fixture
def capture_jobs() -> Callable[[], Any]:
    """:func:`jobs.testing.capture_jobs`"""
    from jobs import testing

    return testing.capture_jobs


@pytest.fixture
def assert_enqueued() -> Callable[..., Any]:
    """:func:`jobs.testing.assert_enqueued`"""
    from jobs import testing

    return testing.assert_enqueued


@pytest.fixture
def assert_not_enqueued() -> Callable[..., Any]:
    """:func:`jobs.testing.assert_not_enqueued`"""
    from jobs import testing

    return testing.assert_not_enqueued


@pytest.fixture
def assert_idempotent() -> Callable[..., Any]:
    """:func:`jobs.testing.assert_idempotent`, for tests with ``django_db(transaction=True)``."""
    from jobs import testing

    return testing.assert_idempotent


@pytest.fixture
def isolation() -> Iterator[None]:
    """What no rollback takes back raises inside of a transaction (:func:`jobs.testing.isolation`)."""
    from jobs import testing

    with testing.isolation():
        yield
