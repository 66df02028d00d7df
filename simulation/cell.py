"""One cluster, in a process of its own: ``python -m simulation.cell '{"nodes": 10, ...}'`` prints what came of it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

#: Connections to the server beside those of the nodes.
SPARE = 60

CLOCK = "SELECT current_setting('jobs.now')::timestamptz"

SETTINGS = (
    "fsync=off",
    "shared_preload_libraries=pg_stat_statements",
    # It would come at times of its own, and change in which order rows are found.
    "autovacuum=off",
    "bgwriter_lru_maxpages=0",
    "checkpoint_timeout=1d",
    "max_wal_size=8GB",
    "shared_buffers=256MB",
    "jit=off",
    "timezone=UTC",
)


def run(plan: dict[str, Any]) -> dict[str, Any]:
    from simulation.world import install, world

    install(plan["seed"])
    import psycopg

    from tests.helpers.servers import Postgres

    connections = plan["nodes"] * (plan["processes"] + 3) + plan["nodes"] // 10 + SPARE
    postgres = Postgres((f"max_connections={connections}", *SETTINGS))
    try:
        postgres.execute("CREATE DATABASE simulation")
        url = postgres.url.rpartition("/")[0] + "/simulation"
        with psycopg.connect(url, autocommit=True) as raw:
            # Names without a schema are looked up there first, in place of PostgreSQL's own clock.
            raw.execute("ALTER DATABASE simulation SET search_path = public, pg_catalog")
            raw.execute("ALTER DATABASE simulation SET jobs.now = '2030-01-01 00:00:00+00'")
            for name in ("now", "statement_timestamp", "clock_timestamp"):
                raw.execute(f"CREATE FUNCTION public.{name}() RETURNS timestamptz STABLE LANGUAGE sql AS $${CLOCK}$$")
            raw.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
        os.environ |= {"SIMULATION_DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "simulation.settings"}
        os.environ["SIMULATION_LIMIT"] = str(plan["limit"])
        world.is_importing = True
        import django

        django.setup()
        from django.core.management import call_command
        from django.utils import timezone

        call_command("migrate", run_syncdb=True, verbosity=0)
        from simulation import node
        from simulation.cluster import Cluster

        now = timezone.now
        timezone.now = lambda: now() if world.actor is None else world.moment()
        node.prepare()
        world.is_importing = False
        kept = ("nodes", "processes", "rate", "length", "often", "until_idle")
        cluster = Cluster(postgres, url, kinds=tuple(plan["kinds"]), **{name: plan[name] for name in kept})
        return {"seed": plan["seed"], **cluster.run(plan["hours"])}
    finally:
        postgres.stop()


if __name__ == "__main__":
    found = run(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    # The dead are not collected: their code would run.
    os._exit(0)
