"""The queues that are measured, by name."""

from benchmarks.peers import (
    awa,
    bare,
    celery,
    dbos,
    django_ox,
    django_q2,
    django_tasks_db,
    dramatiq,
    huey,
    jobs,
    oban,
    pgqueuer,
    procrastinate,
)
from benchmarks.peers.peer import Peer

__all__ = ["PEERS", "Peer"]

#: They appear in the tables in this order.
PEERS: dict[str, Peer] = {
    peer.name: peer
    for module in (
        *(jobs, bare, celery, procrastinate, oban, pgqueuer, awa),
        *(django_tasks_db, django_ox, django_q2, huey, dramatiq, dbos),
    )
    for peer in module.PEERS
}
