"""Flower: jobs and workers by events and remote control."""

import json
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests import tasks
from tests.helpers.harness import ROOT, Worker, environment, wait_ended
from tests.helpers.servers import die_with_parent, wait_for
from tests.strangers.tasks import divides

pytestmark = pytest.mark.django_db(transaction=True)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.fixture
def ask(tmp_path):
    """A running Flower's API: ``ask(path)``, or ``ask(path, {})`` to post."""
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "shop", "flower", f"--port={port}", "--address=127.0.0.1"]
    env = environment(FLOWER_UNAUTHENTICATED_API="true")
    with (tmp_path / "flower").open("ab") as log:
        flower = subprocess.Popen(die_with_parent(*command), stdout=log, stderr=log, env=env, cwd=ROOT)

    def ask(path: str, data: dict | None = None):
        body = None if data is None else json.dumps(data).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", body, timeout=10) as answer:
            return json.load(answer)

    def up() -> bool:
        assert flower.poll() is None, (tmp_path / "flower").read_text()
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    wait_for(up, 30, "Flower")
    yield ask
    flower.terminate()
    flower.wait()


def test_it_shows_workers_and_jobs_and_revokes(ask):
    with Worker("-E", concurrency=1) as worker:
        wait_for(lambda: ask("api/workers?refresh=1"), 20, "the worker")
        well, ill = tasks.add.delay(1, 2), divides.delay(1, 0)
        wait_ended(well.id, ill.id)
        wait_for(lambda: {well.id, ill.id} <= ask("api/tasks").keys(), 20, "both jobs")
        wait_for(lambda: ask("api/tasks")[ill.id]["state"] == "FAILURE", 10, "the failure")
        told = wait_for(lambda: (t := ask("api/tasks")[well.id])["state"] == "SUCCESS" and t, 10, "the success")
        assert (told["name"], told["args"], told["result"]) == ("tests.tasks.add", "(1, 2)", "3")
        assert worker.directory.name in told["worker"]
        # A task by name, as people try it from Flower.
        sent = ask("api/task/send-task/tests.tasks.add", {"args": [2, 3]})
        later = tasks.add.apply_async((1, 1), countdown=600)
        ask(f"api/task/revoke/{later.id}", {})
        [job] = wait_ended(later.id)
        assert job.state == "cancelled"
        [job] = wait_ended(sent["task-id"])
        assert (job.state, job.result) == ("succeeded", 5)
