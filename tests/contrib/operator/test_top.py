"""``manage.py jobs top``: once for scripts, and on a terminal again and again."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from jobs.contrib.operator import top
from jobs.contrib.operator.statistics import MINUTE
from tests.contrib.operator.tallies import tally
from tests.helpers.rows import let_heartbeat, make, make_node, say

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def busy():
    node = let_heartbeat(make_node(hostname="bulk@web1", concurrency=4))
    job = make("running", node=node, age=65, task="shop.tasks.import_orders")
    say(job, 1)
    make("ready", queue="mail", age=600)
    for number in range(7):
        make("ready", queue=f"queue{number}", age=600)
    tally(2 * MINUTE, 30, queue="mail")
    return job


def test_once_in_a_pipe(busy):
    call_command("jobs", "top", "--once", stdout=(out := io.StringIO()))
    text = out.getvalue()
    assert "8 problems: no worker for 7 queues · 1 queue stands still" in text
    assert (
        "1 of 1 workers alive   0 scheduled, 8 ready, 1 running   last hour: 30 succeeded, 0 failed, 0 cancelled"
        in text
    )
    assert "and 3 more: manage.py jobs status" in text
    assert re.search(r"(?m)^mail +1 +0 +0 +10 min +0.[01] +3.0 +1$", text)
    assert re.search(rf"(?m)^{str(busy.pk)[-8:]}  import_orders  [67]\d s +bulk@web1  25 %$", text)
    assert "\x1b[" not in text
    call_command("jobs", "top", "--json", stdout=(out := io.StringIO()))
    assert json.loads(out.getvalue())["running"][0]["id"] == str(busy.pk)


def test_a_terminal_is_redrawn_within_its_size_and_is_as_before_at_the_end(busy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    # Not the one that threads of other tests call.
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=sleep))
    call_command("jobs", "top", "--interval", "3", stdout=(out := Terminal()), no_color=True)
    begin, *frames = out.getvalue().split(top.HOME)
    assert (begin, len(frames), slept) == (top.ENTER, 2, [3.0, 3.0])
    assert frames[-1].endswith(top.LEAVE)
    for frame in frames:
        lines = frame.partition(top.BELOW)[0].splitlines()
        assert len(lines) <= 11
        assert max(len(line.removesuffix(top.TO_END)) for line in lines) <= 80


def test_an_interval_is_above_zero():
    with pytest.raises(CommandError, match="--interval"):
        call_command("jobs", "top", "--interval", "0")
