"""The nodes' heartbeats, which show that they are alive: a counter for each node, so clocks need not agree.

``jobs/maintenance/rescue.py`` judges which nodes are dead.
"""

import uuid

from jobs.store.databases import SideDatabase


def read(side: SideDatabase) -> dict[uuid.UUID, int]:
    return {uuid.UUID(str(node)): count for node, count in side.execute("SELECT node, count FROM jobs_heartbeat")}


def silence(side: SideDatabase) -> dict[uuid.UUID, float]:
    """Seconds since the last beat of each node that ever beat."""
    found = side.execute("SELECT node, {now} - at FROM jobs_heartbeat")
    return {uuid.UUID(str(node)): max(0.0, float(seconds)) for node, seconds in found}


def first(side: SideDatabase, node_id: uuid.UUID) -> None:
    side.execute("INSERT INTO jobs_heartbeat (node, count, at) VALUES (%s, 0, {now})", node_id.hex)


def send(side: SideDatabase, node_id: uuid.UUID) -> bool:
    """Prove that this node is alive; False: it was declared dead, and has to take a new id."""
    changed = side.execute("UPDATE jobs_heartbeat SET count = count + 1, at = {now} WHERE node = %s", node_id.hex)
    return bool(changed == 1)


def delete(side: SideDatabase, node_id: uuid.UUID) -> None:
    side.execute("DELETE FROM jobs_heartbeat WHERE node = %s", node_id.hex)
