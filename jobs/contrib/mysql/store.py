"""MariaDB, and MySQL 8. Workers poll: these servers cannot notify other sessions of new jobs."""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import Any

from django.db import OperationalError, transaction
from django.db.models import CharField, Index, Q, UniqueConstraint
from django.db.models.expressions import RawSQL

from jobs.conf import conf
from jobs.models import Job
from jobs.models.columns import BY_ORDER
from jobs.store import base, databases

#: The rows of this table are never visible: a transaction that inserts one deletes it, and another one that inserts the
#: same name waits for the end of the first. (A lock of the server, GET_LOCK, would outlive the transaction.)
_LOCKS = "CREATE TABLE IF NOT EXISTS jobs_locked_name (name binary(32) PRIMARY KEY) ENGINE=InnoDB"
_LOCK = "INSERT INTO jobs_locked_name (name) VALUES {} ON DUPLICATE KEY UPDATE name = VALUES(name)"

#: Set anew by each claim: with values that a body left in the session, claims find nothing, or lose what they took.
_SESSION = "time_zone = '+00:00', sql_select_limit = DEFAULT, completion_type = DEFAULT"

#: The claim recorded the session. It is left alone if another run uses it by now, or if the server was started since:
#: then its number may belong to another session.
RUNS = """
SELECT j.id, j.backend FROM jobs_job j
WHERE j.id IN ({ids}) AND j.state IN ('running', 'cancelled') AND j.backend IS NOT NULL
  AND j.started_at > {now} - INTERVAL {uptime} SECOND
  AND (j.id, j.lease) IN ({runs})
  AND NOT EXISTS (
    SELECT 1 FROM jobs_job o WHERE o.state = 'running' AND o.backend = j.backend
      AND (o.started_at > j.started_at OR (o.started_at = j.started_at AND j.state = 'cancelled'))
  )
"""

_COLLATIONS = "SELECT table_name, table_collation FROM information_schema.tables WHERE table_schema = DATABASE()"
_INDEXES = """
SELECT table_name, index_name, column_name FROM information_schema.statistics
WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index
"""

#: A login sees its own sessions, and may end them.
SESSIONS = "SELECT id FROM information_schema.processlist WHERE id IN ({ids}) AND id <> CONNECTION_ID()"

#: The sessions that are in a transaction. The server shows them only to a login with the privilege PROCESS.
BUSY = "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx"
NOT_ALLOWED = 1227


class MySQL(base.Store):
    now = "CURRENT_TIMESTAMP(6)"
    locks_what_it_meets = True
    session_id = RawSQL("CONNECTION_ID()", ())
    ignoring = ("INSERT IGNORE", "")
    quote = staticmethod("`{}`".format)
    # "rank" is a reserved word in MySQL 8.
    ready_sql = base.READY.replace(BY_ORDER, BY_ORDER.replace("rank", "`rank`"))

    def prepare(self, connection: Any) -> None:
        """Django reads and writes UTC. The database's own clock must be in UTC as well."""
        with connection.cursor() as cursor:
            cursor.execute(f"SET {_SESSION}")

    def complete_schema(self, models: Iterable[Any]) -> None:
        """There are no partial indexes here, and no unique constraint with a condition.

        An index gets the columns of its condition in front. A constraint becomes a unique index of a computed column,
        which is NULL where the condition does not hold. Keys are compared letter by letter, as on other databases:
        by a server's default "a" equals "A", and two different jobs would count as the same.
        """
        # Tables and columns of another app may not be migrated yet.
        present = set(self.connection.introspection.table_names())
        tables = {model._meta.db_table: model for model in models if not model._meta.proxy}
        tables = {name: model for name, model in tables.items() if name in present}
        # The server cannot change a text column that a foreign key points at. Those hold ids that this app makes.
        tied = {table for model in tables.values() for table in _tied(model)}
        exact = "utf8mb4_nopad_bin" if self.connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        with self.connection.schema_editor() as editor:
            editor.execute(_LOCKS)
            for table, collation in self.ask(_COLLATIONS):
                if table in tables and table not in tied and collation != exact:
                    name = editor.quote_name(table)
                    editor.execute(f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4 COLLATE {exact}")
            there: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
            for table, index, column in self.ask(_INDEXES):
                there[table][index].append(column)
            for name, model in tables.items():
                _complete_table(editor, model, there[name])

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Let the server end the session of a process that vanishes during its claim.

        No row says yet which session has locked the jobs: without this they would wait for hours.
        """
        with self._setting("wait_timeout", conf().DEAD_AFTER), super().claiming():
            yield

    @contextmanager
    def bounded(self, seconds: float) -> Iterator[None]:
        """The limit is in whole seconds, at least one."""
        with self._setting("innodb_lock_wait_timeout", seconds), transaction.atomic(using=self.using):
            yield

    @contextmanager
    def _setting(self, name: str, seconds: float) -> Iterator[None]:
        """Set a variable of the session for a block. A rollback does not change it, and a lost connection loses it.

        The time zone is set again, too: a body may have left another one, and all times would be hours off.
        """
        self.connection.ensure_connection()
        raw = self.connection.connection
        with self.connection.wrap_database_errors, closing(raw.cursor()) as cursor:
            cursor.execute(f"SET @jobs_{name} = @@{name}, {name} = {max(1, math.ceil(seconds))}, {_SESSION}")
        try:
            yield
        finally:
            if (raw := self.connection.connection) is not None:
                with suppress(raw.Error), closing(raw.cursor()) as cursor:
                    cursor.execute(f"SET {name} = @jobs_{name}")

    def insert_marker(
        self, key: str, kind: str, fingerprint: str, job: uuid.UUID | None, keep: float | None, wait: float
    ) -> bool:
        with self.bounded(wait):
            return super().insert_marker(key, kind, fingerprint, job, keep, wait)

    def lock_names(self, names: Collection[str]) -> None:
        keys = sorted(sha256(name.encode()).digest() for name in names)
        if keys:
            with self.connection.cursor() as cursor:
                cursor.execute(_LOCK.format(", ".join(["(%s)"] * len(keys))), keys)
                cursor.execute(f"DELETE FROM jobs_locked_name WHERE name IN ({', '.join(['%s'] * len(keys))})", keys)

    # Sessions of the server: what ``jobs.contrib.sessions`` asks of a store, by these names

    def end_sessions(self, runs: Sequence[tuple[uuid.UUID, int]]) -> tuple[list[uuid.UUID], set[tuple[str, str]]]:
        [[_, uptime]] = self.ask("SHOW GLOBAL STATUS LIKE 'Uptime'")
        ids, pairs = ", ".join(["%s"] * len(runs)), ", ".join(["(%s, %s)"] * len(runs))
        sql = RUNS.format(ids=ids, runs=pairs, now=self.now, uptime=int(uptime))
        convert: Any = partial(Job._meta.pk.get_db_prep_value, connection=self.connection)
        values = [convert(key) for key, _ in runs] + [value for key, lease in runs for value in (convert(key), lease)]
        left = {backend: uuid.UUID(str(key)) for key, backend in self.ask(sql, *values)}
        if not left:
            return [], set()
        found = {session for [session] in self.ask(SESSIONS.format(ids=", ".join(["%s"] * len(left))), *left)}
        ended = [session for session in left if session in found & self._busy(found)]
        for session in ended:
            # Race: it ends by itself at this moment.
            with suppress(OperationalError), self.connection.cursor() as cursor:
                cursor.execute(f"KILL {int(session)}")
        return [left[session] for session in ended], set()

    def _busy(self, sessions: set[int]) -> set[int]:
        """The sessions, out of these, that are in a transaction; all of them if this login may not know that."""
        try:
            return {session for [session] in self.ask(BUSY)}
        except OperationalError as exc:
            if databases.code_of(exc) != NOT_ALLOWED:
                raise
            return sessions

    @contextmanager
    def watched(self, job: Job, seconds: float) -> Iterator[list[Any]]:
        """Only administrators see which session blocks which. So a holder of the row this long counts as the run."""
        yield [True]


def _complete_table(editor: Any, model: Any, there: Mapping[str, list[str]]) -> None:
    for index in (index for index in model._meta.indexes if index.condition is not None):
        whole = _whole(index)
        # Django leaves out only the condition. The columns of another app may not be migrated yet.
        if index.name in there and there[index.name] != [model._meta.get_field(name).column for name in whole.fields]:
            editor.remove_index(model, index)
            editor.add_index(model, whole)
    for constraint in model._meta.constraints:
        is_partial = isinstance(constraint, UniqueConstraint) and constraint.condition is not None
        if is_partial and constraint.name not in there:
            editor.execute(_computed(model, constraint, editor))


def _tied(model: Any) -> Iterator[str]:
    """The tables at both ends of a text foreign key that the server checks."""
    for field in model._meta.concrete_fields:
        if field.remote_field and field.db_constraint and isinstance(field.target_field, CharField):
            yield from (model._meta.db_table, field.related_model._meta.db_table)


def _whole(index: Index) -> Index:
    """The index without its condition; the columns that the condition compares are put in front."""
    has_own_order = index.fields != ["id"]
    front = [
        name.removesuffix("__isnull").removesuffix("__in")
        for name, value in _leaves(index.condition)
        if ("__" not in name) or (name.endswith("__isnull") and value) or (name.endswith("__in") and not has_own_order)
    ]
    fields = [*front, *(name for name in index.fields if name not in front)]
    return Index(name=index.name, fields=fields)


def _leaves(condition: Any) -> Iterator[tuple[str, Any]]:
    for child in condition.children:
        if isinstance(child, Q):
            yield from _leaves(child)
        else:
            yield child


def _computed(model: Any, constraint: UniqueConstraint, editor: Any) -> str:
    quote, meta = editor.quote_name, model._meta
    first, *others = (meta.get_field(name) for name in constraint.fields)
    condition = constraint._get_condition_sql(model, editor)  # type: ignore[attr-defined]
    own = quote(f"{constraint.name}_key")
    columns = ", ".join([own, *(quote(field.column) for field in others)])
    return (
        f"ALTER TABLE {quote(meta.db_table)} ADD COLUMN {own} {first.db_type(editor.connection)} "
        f"GENERATED ALWAYS AS (CASE WHEN {condition} THEN {quote(first.column)} END) VIRTUAL, "
        f"ADD UNIQUE INDEX {quote(constraint.name)} ({columns})"
    )
