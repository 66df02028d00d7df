"""DBOS: workflows as a library over PostgreSQL.

A step is its transaction (SQLAlchemy), or any function, as its guide for Django has it: then a process that dies
between the commit and the note of the step does it again.

Its queue claims once each ``polling_interval_sec``, and without ``worker_concurrency`` all that there is: then it runs
thousands of threads. Both are set to the best that was found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from benchmarks.peers.peer import Peer, database_url, truncate

QUEUE = "workflows"

#: Workflows at once in each process, and seconds between two claims.
AT_ONCE, INTERVAL = 50, 0.1


@dataclass(frozen=True, kw_only=True)
class Dbos(Peer):
    is_exact: bool = True
    has_workflows: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("dbos", "SQLAlchemy")

    @cached_property
    def client(self) -> Any:
        from dbos import DBOSClient

        return DBOSClient(system_database_url=database_url())

    def task(self, body: Callable[[int], None]) -> Any:
        return body

    def workflow(self, steps: int, write: Callable[[int, int], None]) -> Any:
        from dbos import DBOS, SQLAlchemyDatasource

        from benchmarks.completions import record

        if self.is_exact:
            import sqlalchemy

            source = SQLAlchemyDatasource.create(database_url())
            insert = sqlalchemy.text("INSERT INTO project_user (email, is_welcomed) VALUES (:email, false)")

            @source.transaction(isolation_level="READ COMMITTED")
            def step(number: int, each: int) -> None:
                source.sql_session().execute(insert, {"email": f"{number}.{each}"})

        else:
            step = DBOS.step()(write)

        @DBOS.workflow(name=f"steps_{steps}")
        def workflow(number: int) -> None:
            for each in range(steps):
                step(number, each)
            record(number)

        return f"steps_{steps}"

    def bulk(self, task: Any, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.client.enqueue({"workflow_name": task, "queue_name": QUEUE}, number)

    def install(self) -> None:
        from dbos import DBOS

        DBOS.migrate(database_url())

    def purge(self) -> None:
        noted = ["dbos.datasource_outputs"] if self.is_exact else []
        truncate(["dbos.workflow_status", "dbos.operation_outputs", *noted])

    def workers(self, processes: int) -> list[list[str]]:
        return [[sys.executable, "-m", "benchmarks.peers.dbos", str(each)] for each in range(processes)]


def _work(number: str) -> None:
    import threading

    import django
    from dbos import DBOS

    DBOS(
        config={
            "name": "benchmarks",
            "system_database_url": database_url(),
            "executor_id": number,
            "log_level": "WARNING",
        }
    )
    django.setup()
    import benchmarks.project.tasks  # noqa: F401

    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=INTERVAL)
    threading.Event().wait()


PEERS = (
    Dbos(name="dbos", about="its transactions, by SQLAlchemy"),
    Dbos(name="dbos-django", about="its steps, with Django's models: at least once", is_exact=False),
)

if __name__ == "__main__":
    _work(sys.argv[1])
