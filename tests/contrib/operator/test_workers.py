"""A worker is told to be quiet, to go on, or to stop, from the command line and from its page."""

from __future__ import annotations

import signal
import threading
import uuid

import pytest
from celery import current_app
from django.core.management import CommandError, call_command
from django.db import connection
from django.urls import reverse

from jobs.contrib.operator import doors, orders, status, store
from jobs.contrib.why import explain as why
from jobs.models import Node
from jobs.store import databases
from tests import tasks
from tests.helpers.harness import Worker, wait_ended
from tests.helpers.rows import make_node
from tests.helpers.servers import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def tell(worker: Worker, verb: str) -> None:
    call_command("jobs", "tell", verb, str(worker.node.pk)[:8], "--why", "a test", "--json")


def test_only_one_live_worker_is_told():
    node, _ = make_node(hostname="a"), make_node(hostname="b")
    make_node(hostname="b")
    Node.objects.filter(pk=node.pk).update(dead_at=node.started_at)
    for name in ("a", "b", "c"):
        with pytest.raises(CommandError, match="live workers are called"):
            call_command("jobs", "tell", "stop", name)
    with databases.side() as side:
        assert not side.execute("SELECT id FROM jobs_order")


@pytest.mark.parametrize("verb", [orders.QUIET, orders.RESUME, orders.STOP])
def test_a_button_tells_a_worker(staff, verb):
    client, node = staff("view_node", "control_node"), make_node()
    page = reverse("admin:jobs_node_change", args=[node.pk])
    assert f'name="verb" value="{verb}"' in client.get(page).content.decode()
    form = {"verb": verb, "why": "a test"}
    response = client.post(reverse("admin:jobs_node_tell", args=[node.pk]), form, follow=True)
    assert "obeys within a second" in " ".join(map(str, response.context["messages"]))
    with databases.side() as side:
        [told] = store.read(side, node.pk)
    assert (told.what, told.text) == (verb, f"the worker was told to {verb} by ada (a test)")


def test_nobody_tells_a_worker_without_the_permission(staff):
    client, node = staff("view_node"), make_node()
    assert b'name="verb"' not in client.get(reverse("admin:jobs_node_change", args=[node.pk])).content
    tell_url = reverse("admin:jobs_node_tell", args=[node.pk])
    assert client.post(tell_url, {"verb": "stop"}).status_code == 403
    assert client.get(tell_url).status_code == 405


@pytest.mark.slow
def test_a_worker_that_stops_says_so(tmp_path):
    started, gate = tmp_path / "started", tmp_path / "gate"
    with Worker(concurrency=1) as worker:
        result = tasks.waits.delay("last", str(started), str(gate))
        wait_for(started.exists, 20, "it runs")
        [node] = status.gather(live=True)["nodes"]
        assert (node["alive"], node["stopping"]) == (True, False)
        worker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: status.gather(live=True)["nodes"][0]["stopping"], 20, "it says that it stops")
        waiting = tasks.effect.delay("waits")
        assert status.gather(live=True)["queues"][current_app.conf.task_default_queue]["workers"] == 0
        [reason] = [each for each in why.explain(uuid.UUID(waiting.id))[1] if each.code == "no_worker"]
        assert "was told to stop" in reason.says
        gate.touch()
        wait_ended(result.id)
        worker.process.wait(30)


def test_nobody_asks_for_orders_as_long_as_the_clock_sees_none():
    """On SQLite they are in a file of their own, at which no clock looks."""
    stopping, asked, operator = threading.Event(), [], doors.Operator()
    thread = threading.Thread(target=doors.obey, args=(stopping, lambda step: asked.append(step)))
    looks_itself = connection.vendor == "sqlite"
    operator.ticked({"default": {"orders": False}})
    thread.start()
    try:
        assert wait_for(lambda: asked or not looks_itself, 5, "it looks itself")
        operator.ticked({"default": {"orders": False}})
        assert looks_itself or not asked
        operator.ticked({"default": {"orders": True}})
        wait_for(lambda: asked, 5, "it was told")
        # What the clock cannot say is asked.
        asked.clear()
        operator.ticked({})
        wait_for(lambda: asked, 5, "the clock looks seldom")
    finally:
        stopping.set()
        operator.heard(None)
        thread.join(5)
    assert not thread.is_alive()
