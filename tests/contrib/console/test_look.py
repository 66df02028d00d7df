"""``manage.py jobs list|show|nodes``."""

from __future__ import annotations

import datetime
import io
import json
import re
import uuid

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from jobs import __version__
from tests import tasks
from tests.helpers.harness import Worker, wait_ended
from tests.helpers.rows import ERROR, make

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("jobs", *args, stdout=out)
    return out.getvalue()


def test_list_is_of_the_newest_and_says_that_there_are_more():
    jobs = [make("ready", age=age) for age in (30, 10, 20)] + [make("failed", age=40)]
    lines = run("list", "--limit", "3").splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [str(jobs[index].pk) for index in (1, 2, 0)]
    assert lines[4] == "and more: --limit 6"
    lines = run("list", "--state", "failed").splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(str(jobs[3].pk))
    assert lines[1].endswith("ValueError: no")
    [found] = json.loads(run("list", "--state", "failed", "--json"))
    assert (found["id"], found["error"]["type"], found["database"]) == (str(jobs[3].pk), "ValueError", "default")
    assert run("list", "--task", "tests.tasks.noop") == "There is no such job.\n"
    with pytest.raises(CommandError, match="--limit"):
        run("list", "--limit", "0")


def test_list_is_by_time_whatever_the_ids():
    old, new = make(age=30), make(age=10)
    at = timezone.now() - datetime.timedelta(seconds=20)
    members = [make(id=uuid.UUID(digit * 8 + str(uuid.uuid4())[8:]), age=20, made_at=at) for digit in "0f"]
    found = [job["id"] for job in json.loads(run("list", "--json"))]
    assert found == [str(job.pk) for job in (new, *reversed(members), old)]


def test_show_has_everything():
    job = make("failed", args=[1, {"a": "b"}], errors=[{**ERROR, "traceback": "Traceback\n  line"}], retries=2)
    text = run("show", str(job.pk))
    for words in (str(job.pk), job.task, "[1, {'a': 'b'}]", "ValueError, attempt 1", "Traceback\n  line"):
        assert words in text
    found = json.loads(run("show", str(job.pk), "--json"))
    assert (found["args"], found["retries"], found["errors"][0]["message"]) == ([1, {"a": "b"}], 2, "no")
    for text in "7", "{}":
        with pytest.raises(CommandError, match="no valid UUID"):
            run("show", text)
    with pytest.raises(CommandError, match="jobs why"):
        run("show", str(uuid.uuid4()))


def test_list_fits_a_terminal(monkeypatch):
    job = make(
        "cancelled", task="shop.tasks.send_welcome_email", error={"type": "SMTPConnectError", "message": "x" * 99}
    )
    for columns, kept in (("80", str(job.pk)[-8:]), ("200", str(job.pk))):
        monkeypatch.setenv("COLUMNS", columns)
        for options in ({"no_color": True}, {"force_color": True}):
            call_command("jobs", "list", stdout=(out := Terminal()), **options)
            lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
            assert max(map(len, lines)) <= int(columns)
            [line] = [line for line in lines if kept in line]
            for words in ("cancelled", "send_welcome_email", "SMTPConnect"):
                assert words in line
    assert str(job.pk) in run("list"), "a pipe gets all"


def test_equal_errors_are_shown_once():
    alike = {**ERROR, "traceback": "Traceback\n  alike"}
    errors = [{**alike, "attempt": number, "at": f"t{number}"} for number in (1, 2, 3)]
    errors.append({**ERROR, "traceback": "Traceback\n  other", "attempt": 4, "at": "t4"})
    text = run("show", str(make("failed", errors=errors, error=errors[-1]).pk))
    assert text.count("  alike") == text.count("  other") == 1
    assert "ValueError, 3 times alike: attempt 1, t1 to attempt 3, t3" in text
    assert "ValueError, attempt 4, t4" in text


@pytest.mark.slow
@pytest.mark.parametrize("version", [None, "shop-2.4"])
def test_nodes_of_a_real_worker(settings, version):
    settings.JOBS = {**settings.JOBS, "VERSION": version}
    with Worker(concurrency=3) as worker:
        wait_ended(tasks.noop.delay().id)
        [found] = json.loads(run("nodes", "--json"))
        assert (found["id"], found["alive"], found["queues"]) == (str(worker.node.pk), True, ["celery"])
        assert (found["version"], found["pool"], found["concurrency"]) == (version or __version__, "prefork", 3)
        assert "prefork 3" in run("nodes")
