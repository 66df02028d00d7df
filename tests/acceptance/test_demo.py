"""``manage.py demo``, as a newcomer runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shop.demo.rabbitmq import RabbitMQ
from tests.conftest import not_installed
from tests.helpers.servers import wait_for

ROOT = Path(__file__).resolve().parents[2]


def environment(directory: Path) -> dict[str, str]:
    """Ours without what is set for the tests; what the demo leaves behind is left in the directory."""
    own = {
        key: value
        for key, value in os.environ.items()
        if key != "DJANGO_SETTINGS_MODULE" and not key.startswith("JOBS_")
    }
    return {**own, "TMPDIR": str(directory)}


def demo(directory: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "demo", *options]
    return subprocess.run(
        command, cwd=ROOT, env={**environment(directory), **env}, capture_output=True, text=True, timeout=110
    )


def workers_in(directory: Path) -> list[int]:
    """The processes whose environment names the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"SHOP_DEMO_DIRECTORY={directory}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("between", ["RabbitMQ", "the database that both share"])
def test_demo_loses_nobody_and_does_nothing_twice(tmp_path, between):
    if between == "RabbitMQ" and not RabbitMQ.is_installed():
        not_installed("rabbitmq-server (Debian: rabbitmq-server)")
    own = [] if between == "RabbitMQ" else ["--without-rabbitmq"]
    run = demo(tmp_path, "--signups", "40", "--seed", "1", "--json", *own)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["lost"], result["twice"], result["problems"]) == (0, 0, [])
    assert result["signups"] == result["distinct_mails"] == 40
    # It was not for want of trouble:
    assert result["rolled_back"] > 0
    assert result["retries"] >= result["refused"] > 0
    assert result["workers_killed"] == 2
    assert result["rescued"] >= 2
    assert result["half_done"] == 0
    # Somebody ordered, and was charged once although the provider did not always say so:
    assert result["payments"] == result["charged"] == 10
    assert result["ambiguous"] >= result["unanswered"] > 0
    assert result["charged_twice"] == 0
    # Each order was packed, and fetched or reminded of, although processes died around the commits of these steps:
    assert (result["killed_between_steps"], result["steps_lost"], result["steps_twice"]) == (3, 0, 0)
    assert result["reminders"] == 5
    # The second service has heard of all of it, once, whoever died:
    assert (result["between"], result["broker_killed"]) == (between, 0 if own else 1)
    assert result["events"] == result["handled"] == 50
    assert result["points"] == 40 * 100 + 10 * 19
    assert (result["loyalty_killed"], result["events_lost"], result["events_twice"]) == (2, 0, 0)
    assert result["mails"] > result["distinct_mails"], "those of the killed workers were accepted twice"
    assert result["seconds"] < 60
    assert list(tmp_path.iterdir()) == []
    assert workers_in(tmp_path) == []


def start_long_demo(directory: Path) -> subprocess.Popen[bytes]:
    """A demo that is signing customers up, with two workers."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "demo", "--signups", "5000"],
        cwd=ROOT,
        env=environment(directory),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(workers_in(directory)) > 4, 30, "workers are up")
    time.sleep(2)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_interrupted_leaves_nothing_behind(tmp_path, number):
    process = start_long_demo(tmp_path)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert list(tmp_path.iterdir()) == []
    assert workers_in(tmp_path) == []


@pytest.mark.slow
def test_demo_that_is_killed_leaves_no_workers_behind(tmp_path):
    process = start_long_demo(tmp_path)
    [inner] = [pid for pid in workers_in(tmp_path) if b"django" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(inner, signal.SIGKILL)
    assert process.wait(30) == 128 + signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: workers_in(tmp_path) == [], 5, "the workers end")


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_bad_number_of_signups_is_refused(tmp_path, number):
    run = demo(tmp_path, f"--signups={number}")
    assert run.returncode == 2
    assert "--signups" in run.stderr
    assert "Traceback" not in run.stderr


def test_help_says_what_it_needs(tmp_path):
    run = demo(tmp_path, "--help")
    assert run.returncode == 0
    for word in ("--signups", "--seed", "--json", "DATABASE_URL", "CELERY_BROKER_URL"):
        assert word in run.stdout


def test_unreachable_database_server_is_one_sentence(tmp_path):
    run = demo(tmp_path, DATABASE_URL="postgresql://nobody@127.0.0.1:9/nothing")
    assert run.returncode == 1
    assert "DATABASE_URL: no database can be created there" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("url", ["redis://127.0.0.1:9/0", "amqp://127.0.0.1:9//"])
def test_demo_does_without_its_broker(tmp_path, url):
    run = demo(tmp_path, "--signups", "20", "--json", CELERY_BROKER_URL=url)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["problems"] == []
    assert list(tmp_path.iterdir()) == []
