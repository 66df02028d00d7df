"""What others call, set, type and read stays: a name that leaves is a decision, and no accident."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from tests.helpers.rows import let_heartbeat, make, make_node
from tests.public_surface import listed, surface

PROMISED, FOUND = listed(), surface()


@pytest.mark.parametrize("kind", PROMISED)
def test_no_public_name_leaves_or_changes(kind):
    assert sorted(PROMISED[kind] - FOUND[kind]) == []


def test_each_new_public_name_is_listed():
    new = {kind: sorted(names - PROMISED.get(kind, set())) for kind, names in FOUND.items()}
    assert {kind: names for kind, names in new.items() if names} == {}, "run python -m tests.public_surface"


#: Of what is printed with ``--json``: the keys of the whole, or of the first of a list; and those inside.
SHAPES = {
    "status": """
capped databases.default.adopted dead_nodes died due.count due.lag_seconds jobs.cancelled jobs.failed jobs.ready
jobs.running jobs.scheduled jobs.succeeded limits.by_hand limits.concurrency limits.kind limits.name limits.next_in
limits.rate limits.reached limits.running nodes.age_seconds nodes.alive nodes.beat_seconds nodes.concurrency
nodes.hostname nodes.id nodes.pid nodes.pool nodes.queues nodes.running nodes.stopping nodes.takes_jobs nodes.version
oldest_ready_seconds pauses queues.mail.capped queues.mail.held queues.mail.oldest_ready_seconds queues.mail.paused
queues.mail.ready queues.mail.running queues.mail.scheduled queues.mail.workers remarks schedules unknown_tasks
    """,
    "nodes": """
age_seconds alive beat_seconds concurrency hostname id pid pool queues running stopping takes_jobs version
    """,
    "list": """
crashes created_at database error expires_at finished_at id lease marker_key node node_losses parent_id priority queue
replay_of retries root_id run_at snoozes started_at state task unique_key
    """,
    "show {id}": """
args crashes created_at cursor database error errors expires_at finished_at id kwargs lease marker_key node node_losses
parent_id priority progress queue replay_of result retries root_id run_at snoozes started_at state task unique_key
    """,
    "why {id}": """
database id queue reasons.code reasons.cure reasons.evidence reasons.says state task
    """,
}


def keys(value, path=""):
    if isinstance(value, list):
        yield from keys(value[0], path) if value else ()
    elif isinstance(value, dict):
        for name, inside in value.items():
            yield path + name
            yield from keys(inside, f"{path}{name}.")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", SHAPES)
def test_what_programs_read_keeps_its_keys(command):
    let_heartbeat(make_node())
    job = make("ready", queue="mail")
    out = StringIO()
    call_command("jobs", *command.format(id=job.pk).split(), "--json", stdout=out)
    found = set(keys(json.loads(out.getvalue())))
    assert set(SHAPES[command].split()) - found == set()
