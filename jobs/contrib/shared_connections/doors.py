"""The part of the shared connections in the core."""

from __future__ import annotations

from jobs.doors import Extension


class SharedConnections(Extension):
    instead = {
        "jobs.maintenance.turn": "jobs.contrib.shared_connections.turns.turn",
        "jobs.maintenance.give_way": "jobs.contrib.shared_connections.turns.give_way",
        "jobs.worker.supervisor.Supervisor": "jobs.contrib.shared_connections.supervisor.Sharing",
    }
