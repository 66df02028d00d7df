"""A line of ours is one line, whatever names and errors hold."""

from __future__ import annotations

import logging

import pytest

from jobs.conf import logs
from jobs.models import Job
from tests import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_line_is_one_line_and_steers_no_terminal(caplog):
    """Names and errors come from anywhere; of a traceback the lines stay."""
    job = Job.objects.get(pk=tasks.noop.delay().id)
    job.task = "evil\x1b[2J\nforged"
    with caplog.at_level(logging.DEBUG, "jobs"):
        try:
            raise ValueError("\x1b]0;title\x07 and \u202e")
        except ValueError as exc:
            logs.log(logging.ERROR, job, f"failed: {exc}", "failed", exc_info=exc)
            logs.logger.warning("%s of %d: %r", exc, 7, exc, extra={"action": "x"})
        logs.logger.warning("a plain\x9b one", extra={"action": "x"})
    texts = [logging.Formatter("%(message)s").format(record) for record in caplog.records]
    assert not set("".join(texts)) & set("\x1b\x07\u202e\x9b"), texts
    assert texts[0].startswith(
        f"evil\\x1b[2J\\nforged[{job.pk}] failed: \\x1b]0;title\\x07 and \\u202e\nTraceback (most"
    )
    assert texts[0].splitlines()[-1] == "ValueError: \\x1b]0;title\\x07 and \\u202e"
    assert texts[1].startswith("\\x1b]0;title\\x07 and \\u202e of 7: ValueError")
