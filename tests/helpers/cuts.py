"""The server ends the session before each statement of an action, and before each COMMIT (PostgreSQL)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from django.db import connection

from tests.helpers import driver
from tests.helpers.concurrency import Elsewhere, cut

#: What goes past Django's cursor.
PAST = "_send", "send", "fetch", "execute", "insert"


def cut_everywhere(action: Callable[[], Any], is_told: bool = True) -> Iterator[int]:
    """Do it on connections of which the first is cut before its first statement, the next one before its second.

    Parameters:
        is_told: the action raises what it meets, else it goes on by itself.
    """
    for number in itertools.count(1):
        points = iter(range(number))

        def reach() -> None:
            if next(points, None) == number - 1:  # noqa: B023
                cut()

        outcome = Elsewhere(lambda: _attempt(action, reach)).result()
        is_over = next(points, None) is not None
        # What follows a commit may fail without a word.
        assert outcome is None or (is_told and not is_over), outcome
        yield number
        if is_over:
            return


def _attempt(action: Callable[[], Any], reach: Callable[[], None]) -> None:
    session = driver.session_class()
    own, commit, is_inside = threading.get_ident(), connection._commit, False

    def reached(call: Callable[..., Any]) -> Callable[..., Any]:
        def reach_and_call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            if threading.get_ident() != own or is_inside:
                return call(*args, **kwargs)
            is_inside = True
            try:
                reach()
                return call(*args, **kwargs)
            finally:
                is_inside = False

        return reach_and_call

    try:
        connection._commit = reached(commit)
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name in filter(partial(hasattr, session), PAST):
                patch.setattr(session, name, reached(getattr(session, name)))
            stack.enter_context(connection.execute_wrapper(lambda execute, *given: reached(execute)(*given)))
            action()
    finally:
        del connection._commit
