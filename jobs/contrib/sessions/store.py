"""The sessions of PostgreSQL's server. A session that holds locks belongs to a run, to a zombie, or to another program.

The claim recorded the server's process. Each worker may log in with its own role, and switch to another one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import ProgrammingError, transaction

from jobs.models import Job
from jobs.store import databases
from jobs.store.postgresql import PostgreSQL

#: Whether this session may end the session ``a`` of ``pg_stat_activity``, and see it: without seeing when ``a`` began,
#: it could not tell whether the process id belongs to another session by now.
MAY_END = """(
    (pg_has_role(a.usesysid, 'USAGE')
        OR (pg_has_role('pg_signal_backend', 'USAGE') AND pg_has_role('pg_read_all_stats', 'USAGE')))
    AND (SELECT rolsuper FROM pg_roles WHERE oid = a.usesysid)
        <= (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
)"""

#: The roles of sessions that run jobs, or ran the last ones, and that this session may not end.
OUT_OF_REACH = f"""
SELECT DISTINCT a.usename::text FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid = ANY (%s) AND NOT {MAY_END}
ORDER BY 1
"""

#: By two indexes: the sessions that run jobs, and the sessions of the jobs that ended last.
SESSIONS = """
(SELECT DISTINCT backend FROM jobs_job WHERE state = 'running' AND backend IS NOT NULL LIMIT 1000)
UNION
(SELECT backend FROM jobs_job WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1000)
"""

#: The claim recorded the server process. It is left alone if another run uses the same connection by now: the process
#: of a killed run may already be at the next job of the same claim.
RUNS = """
SELECT j.id, j.backend, j.started_at FROM jobs_job j
WHERE j.id = ANY (%s::uuid[]) AND j.state IN ('running', 'cancelled') AND j.backend IS NOT NULL
  AND (j.id, j.lease) IN (SELECT * FROM unnest(%s::uuid[], %s::int[]))
  AND NOT EXISTS (
    SELECT 1 FROM jobs_job o WHERE o.state = 'running' AND o.backend = j.backend
      AND (o.started_at > j.started_at OR (o.started_at = j.started_at AND j.state = 'cancelled'))
  )
"""

#: A session is ended if it is in a transaction and older than the claim: else its process id was used again.
END = f"""
SELECT run.id, current_user::text, a.usename::text, may.end_it, CASE
    WHEN may.end_it AND a.state <> 'idle' AND a.backend_start <= run.started_at THEN pg_terminate_backend(a.pid) END
FROM unnest(%s::uuid[], %s::int[], %s::timestamptz[]) AS run (id, backend, started_at)
JOIN pg_stat_activity a ON a.pid = run.backend
CROSS JOIN LATERAL (SELECT {MAY_END} AS end_it) AS may
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
"""

ACTIVITY = """
SELECT pid, activity.application_name, activity.state, extract(epoch FROM clock_timestamp() - activity.xact_start)
"""
QUESTIONS = {
    # The session whose open transaction has locked or changed the row. This query never waits, and locks nothing.
    "locks": """
FROM jobs_job JOIN pg_locks ON locktype = 'transactionid' AND transactionid = jobs_job.xmax AND granted
JOIN pg_stat_activity AS activity USING (pid) WHERE jobs_job.id = %s
""",
    # The sessions that a server process waits for.
    "blocks": "FROM unnest(pg_blocking_pids(%s)) AS pid JOIN pg_stat_activity AS activity USING (pid)",
    # The oldest open transaction. PostgreSQL cannot remove rows that died since it began, and claims step over them.
    "old": """
FROM pg_stat_activity AS activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND xact_start < clock_timestamp() - interval '1 second' * %s ORDER BY xact_start LIMIT 1
""",
}

#: Whether a server process waits for the run's own transaction, or for one of its savepoints.
HOLDS = "SELECT 1 FROM jobs_job WHERE id = %s AND backend = ANY(pg_blocking_pids(%s))"


class WithSessions(PostgreSQL):
    def end_sessions(self, runs: Sequence[tuple[uuid.UUID, int]]) -> tuple[list[uuid.UUID], set[tuple[str, str]]]:
        """End the server's sessions of runs (job and lease) that are over. The job may have another run by now.

        Returns:
            The jobs whose session was ended; and for each session that may not be ended, our role and its role.
        """
        keys, leases = (list(each) for each in zip(*runs, strict=True))
        if not (left := self.ask(RUNS, keys, keys, leases)):
            return [], set()
        with self._logged_in():
            found = self.ask(END, *(list(each) for each in zip(*left, strict=True)))
        kept = {(own, role) for _, own, role, may_end, _ in found if not may_end}
        return [key for key, *_, is_done in found if is_done], kept

    def out_of_reach(self) -> tuple[str, list[str]]:
        """The role that this process logs in with, and the roles of other workers whose sessions it may not end."""
        try:
            pids = [pid for [pid] in self.ask(SESSIONS) if pid is not None]
        except ProgrammingError:
            # The tables are not migrated yet.
            return "", []
        with self._logged_in():
            own = self.ask("SELECT current_user::text")[0][0]
            return own, [role for [role] in self.ask(OUT_OF_REACH, pids)]

    @contextmanager
    def _logged_in(self) -> Iterator[None]:
        """A savepoint in which the session has the role that it logged in with, and not the one of ``assume_role``.

        The login role decides which sessions the server lets it see and end.
        """
        with transaction.atomic(using=self.using), self.connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('role'), set_config('role', 'none', true)")
            before = cursor.fetchone()[0]
            yield
            # After an exception the end of the savepoint does the same.
            cursor.execute("SELECT set_config('role', %s, true)", [before])

    def sessions(self, question: str, value: Any) -> list[tuple[int, str, str, float]]:
        rows = self.ask(ACTIVITY + QUESTIONS[question], value)
        return [(pid, application, state, float(seconds or 0)) for pid, application, state, seconds in rows]

    @contextmanager
    def watched(self, job: Job, seconds: float) -> Iterator[list[Any]]:
        found: list[Any] = []
        [[waiter]] = self.ask("SELECT pg_backend_pid()")

        def look() -> None:
            with databases.apart(self.using) as connection, connection.cursor() as cursor:
                cursor.execute(HOLDS, [job.pk, waiter])
                found.extend(cursor.fetchall())

        timer = threading.Timer(seconds, look)
        timer.start()
        try:
            yield found
        finally:
            timer.cancel()
            timer.join()
