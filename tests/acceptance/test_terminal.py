"""What a terminal would obey: no command prints it, whoever wrote it."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobs.contrib.pauses import pauses
from jobs.events.models import Event
from jobs.models import Effect
from tests.helpers.rows import ERROR, make, make_node
from tests.helpers.terminal import OBEYED

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("how", ["--no-color", "--force-color"])
def test_names_and_errors_steer_no_terminal(how):
    error = {**ERROR, "type": f"Evil{OBEYED}", "message": f"message {OBEYED}", "traceback": f"Traceback\n  x{OBEYED}"}
    node = make_node(hostname=f"web{OBEYED}", queues=[f"q{OBEYED}"])
    job = make(
        "failed", task=f"evil{OBEYED}", queue=f"q{OBEYED}", error=error, errors=[error], args=[OBEYED], node=node
    )
    Effect.objects.create(name=f"call{OBEYED}", key=OBEYED, job=job.pk, lease=1, state="parked")
    pauses.pause(f"q{OBEYED}", reason=OBEYED)
    event = Event.objects.create(
        name=f"e{OBEYED}", source=OBEYED, order_key=OBEYED, problem=f"of {OBEYED}", data={"a": OBEYED}
    )
    calls = [["show", str(job.pk)], ["why", str(job.pk)], ["list"], ["status"], ["effects"], ["pause"], ["batches"]]
    calls += [
        ["events", "list"],
        ["events", "show", str(event.uuid)],
        ["cancel", str(job.pk)],
        ["resume", f"q{OBEYED}"],
    ]
    for call in calls:
        for more in ([], ["--json"]):
            out, err = StringIO(), StringIO()
            error = ""
            try:
                call_command("jobs", *call, *more, how, stdout=out, stderr=err)
            except CommandError as exc:
                error = str(exc)
            text = out.getvalue() + err.getvalue() + error
            # What colours a line is our own.
            text = re.sub(r"\x1b\[(0|3\d|3\d;1)m", "", text)
            assert not set(text) & set(OBEYED.replace("\n", "")) & set("\x1b\x07\r\u202e\x9b"), (call, more)
            is_trace = call[0] == "show" and not more
            assert is_trace or not re.search("^forged", text, re.MULTILINE), (call, more, text)
    out = StringIO()
    call_command("jobs", "list", "--json", stdout=out)
    assert json.loads(out.getvalue())[0]["task"] == job.task, "JSON says what there is"
