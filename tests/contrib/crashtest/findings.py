"""What a crash test finds, for several tests."""

from __future__ import annotations

import inspect

import pytest

from jobs.testing import NotIdempotent, assert_idempotent


def line_of(task) -> int:
    lines, start = inspect.getsourcelines(task.run)
    return start + next(index for index, text in enumerate(lines) if "# <- here" in text)


def found_in(task, *args, **options) -> list:
    with pytest.raises(NotIdempotent) as caught:
        assert_idempotent(task, *args, **options)
    return caught.value.findings
