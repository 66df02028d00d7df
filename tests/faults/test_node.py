"""A whole machine dies, is paused, or loses its database; another one takes over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from celery import shared_task

from jobs.conf import conf
from jobs.contrib.inspection import counts
from jobs.models import Job, Node
from tests import tasks
from tests.faults.guards import Without, guard
from tests.faults.ledger import LOST_WORKER, WORK
from tests.faults.proxy import Proxy
from tests.faults.worker import Worker, workers
from tests.helpers.gates import wait_for_file
from tests.helpers.servers import wait_for
from tests.models import Effect

#: A node whose beat finds no row has been declared dead, and goes on under another id.
ANOTHER_ID = Without(
    "jobs.worker.supervisor:Supervisor._heartbeat",
    "[heartbeats.send(self._side, worker_state.node)]",
    call="heartbeats.send",
)


def dead(worker: Worker) -> bool:
    return Node.objects.filter(pk=worker.node.pk, dead_at__isnull=False).exists()


def silence(worker: Worker) -> float:
    return counts.silence()[worker.node.pk]


@pytest.mark.databases("postgres", "mariadb")
@pytest.mark.quick
@guard("jobs.maintenance.rescue:rescue_all")
def test_worker_killed_under_load(ledger):
    """SIGKILL to the whole group.

    Guard: rescue gives back the jobs of dead nodes.
    """
    with workers(2) as [first, _]:
        with ledger.load(300):
            ledger.wait_effects(50)
            first.kill()
        ledger.check(within=LOST_WORKER)


@pytest.mark.databases("postgres", "mariadb")
@pytest.mark.parametrize("link_is", ["closed", "half-open"])
@guard("jobs.contrib.sessions.zombies:end_backends", case="half-open")
@guard("jobs.maintenance.rescue:rescue_all", case="closed")
def test_all_workers_lose_power_at_once(ledger, database, link_is):
    """Their connections are closed, or stay open at the database server, in transactions that hold locks.

    Guard: rescue ends the connections of dead runs, and gives their jobs back.
    """
    ledger.enqueue(300, tasks.takes_turns)
    with Proxy(database.url) as link:
        with workers(2, DATABASE_URL=link.url) as machines:
            ledger.wait_effects(20)
            if link_is == "half-open":
                link.half_open()
            for machine in machines:
                machine.kill()
        with Worker():
            ledger.check(within=LOST_WORKER)


@pytest.mark.parametrize("point", ["before_commit", "after_completion"])
@guard("jobs.contrib.sessions.zombies:end_backends", case="before_commit")
@guard("jobs.contrib.sessions.zombies:end_backends", case="after_completion")
def test_zombie_paused_with_a_row_lock(ledger, point):
    """Suspended in mid-body, or between its fenced UPDATE and its COMMIT; it comes to itself when all is done.

    Guard: rescue ends the connections of dead runs.
    """
    ledger.enqueue(300, tasks.takes_turns)
    with Worker(sync=f"{point}=pause") as zombie, Worker():
        zombie.reached(point)
        zombie.pause()
        ledger.check(within=LOST_WORKER)
        zombie.go(point)
        zombie.resume()
        zombie.said("was given to another run")
        ledger.check(within=WORK)


@shared_task(bind=True)
def gated_by_lease(self, key, directory):
    """Each run says that it has begun, and holds its transaction open until its own gate file exists."""
    Effect.objects.create(key=key, pid=os.getpid())
    Path(directory, f"started-{self.job.lease}").touch()
    wait_for_file(f"{directory}/gate-{self.job.lease}")


@guard(Without("jobs.store.base:owned", "Job.objects.using(job._state.db).filter(pk=job.pk, state=State.RUNNING)"))
def test_zombie_wakes_while_its_successor_runs(ledger, tmp_path):
    """Its connection was ended; what it writes on a new one must not touch the run of the other.

    Guard: the fence.
    """
    job = gated_by_lease.delay("held", str(tmp_path))
    ledger.note("held", job)
    ledger.enqueue(300)
    with Worker() as zombie:
        wait_for((tmp_path / "started-1").exists, 20, "the first run")
        zombie.pause()
        with Worker():
            wait_for((tmp_path / "started-2").exists, LOST_WORKER, "the second run")
            (tmp_path / "gate-1").touch()
            zombie.resume()
            zombie.said(f"[{job.id}] was given to another run")
            (tmp_path / "gate-2").touch()
            ledger.check(within=LOST_WORKER)
    assert Job.objects.values_list("lease", "node_losses").get(pk=job.id) == (2, 1)


@guard(ANOTHER_ID)
def test_a_node_that_wakes_up_takes_another_id(ledger):
    """A node that was declared dead is dead; its worker goes on as another one.

    Guard: a beat that changes no row takes a new id.
    """
    with Worker() as sleeper:
        with Worker():
            ledger.enqueue(150)
            sleeper.pause()
            wait_for(lambda: dead(sleeper), LOST_WORKER, "the sleeper is declared dead")
            sleeper.resume()
        wait_for(lambda: Node.objects.filter(pid=sleeper.process.pid, dead_at=None).exists(), 10, "a new node")
        ledger.enqueue(150)
        ledger.check(within=LOST_WORKER)


@guard(
    Without(
        "jobs.worker.watchdog:Handle.start",
        "uuid.uuid5(uuid.NAMESPACE_DNS, socket.gethostname())",
        call="uuid.uuid4",
    )
)
def test_hostname_is_used_again(ledger):
    """The next worker of that name is up before anybody has noticed the death of the first.

    Guard: a node is one start of a worker, and not a name.
    """
    ledger.enqueue(300)
    with Worker("-n", "same@host", sync="before_commit=pause") as first:
        first.reached("before_commit")
        first.kill()
    with Worker("-n", "same@host"):
        assert not dead(first)
        ledger.check(within=LOST_WORKER)
    assert set(Job.objects.filter(node_losses__gt=0).values_list("node_losses", flat=True)) == {1}


@guard(ANOTHER_ID)
def test_worker_cut_off_from_its_database(ledger, database):
    """The network parts one machine from the database, for longer than it takes to be called dead.

    Guard: the fence, and a beat that changes no row.
    """
    with Proxy(database.url) as link, Worker(DATABASE_URL=link.url) as island, Worker():
        ledger.enqueue(300, tasks.works)
        ledger.wait_effects(20)
        link.half_open()
        wait_for(lambda: dead(island), LOST_WORKER, "the island is declared dead")
        ledger.check(within=LOST_WORKER)
        link.restore()
        wait_for(lambda: Node.objects.filter(pid=island.process.pid, dead_at=None).exists(), 30, "it is back")
        ledger.enqueue(100)
        ledger.check(within=WORK)


@guard(Without("jobs.lifecycle.worker_state:WorkerState.silence", "0.0"))
def test_a_node_that_cannot_beat_claims_nothing(ledger):
    """Its supervisor hangs, and its children are well: they must not take jobs that are given away in a moment.

    Guard: no claim after half of ``DEAD_AFTER`` without a beat.
    """
    ledger.enqueue(600, tasks.lingers, kwargs={"seconds": conf().DEAD_AFTER / 100})
    with Worker() as mute:
        mute.supervisor.pause()
        wait_for(lambda: silence(mute) > conf().DEAD_AFTER / 2, 60, "the node is silent")
        own = Job.objects.filter(node=mute.node)
        wait_for(lambda: not own.filter(state="running").exists(), conf().DEAD_AFTER / 3, "it has ended what it had")
        claimed = own.count()
        with Worker():
            ledger.check(within=LOST_WORKER)
    assert own.count() == claimed
    assert Job.objects.filter(lease=1).count() == Job.objects.count()
