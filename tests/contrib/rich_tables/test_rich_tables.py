"""The tables of the commands on a terminal."""

from __future__ import annotations

import io
import sys

import pytest
from django.core.management import call_command

from tests.helpers.rows import let_heartbeat, make

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_for_people_on_a_terminal_and_plain_in_a_pipe(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    job = make("running", task="[red]shop.mail[/red]")
    let_heartbeat(job.node)
    looks = {}
    for name, out, options in (("terminal", Terminal(), {}), ("plain", Terminal(), {"no_color": True})):
        call_command("jobs", "list", stdout=out, **({"force_color": True} if name == "terminal" else options))
        looks[name] = out.getvalue()
    call_command("jobs", "list", stdout=(pipe := io.StringIO()))
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, "rich.box", None)
        call_command("jobs", "list", stdout=(out := Terminal()), force_color=True)
        looks["without rich"] = out.getvalue()
    assert "\x1b[" in looks["terminal"]
    assert "─" in looks["terminal"]
    for look in (looks["plain"], looks["without rich"], pipe.getvalue()):
        assert "\x1b[" not in look
        assert "─" not in look
    assert str(job.pk) in looks["terminal"]
    assert "[red]" in looks["terminal"], "what a job says is no markup"
