"""The queues that are measured, by name."""

from benchmarks.peers import bare, celery, dbos, django_q2, django_tasks_db, dramatiq, huey, jobs, procrastinate
from benchmarks.peers.peer import Peer

__all__ = ["PEERS", "Peer"]

#: They appear in the tables in this order.
PEERS: dict[str, Peer] = {
    peer.name: peer
    for module in (jobs, bare, celery, procrastinate, django_tasks_db, django_q2, huey, dramatiq, dbos)
    for peer in module.PEERS
}
