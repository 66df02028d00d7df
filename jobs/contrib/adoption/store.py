"""What a database says of itself, for its mark."""

from typing import Any

from jobs.store.base import Store


def of_postgresql(at: Store) -> tuple[Any, ...]:
    database = "FROM pg_database WHERE datname = current_database()"
    may_read = "has_function_privilege(to_regprocedure('pg_control_system()')::oid, 'EXECUTE')"
    # Every role may read the identifier, unless that right was revoked. We ask first, because a refused statement
    # would break a transaction around it.
    if at.ask(f"SELECT 1 WHERE {may_read}"):
        found = f"system_identifier, (SELECT oid {database}) FROM pg_control_system()"
    else:
        found = f"'oids', oid, to_regclass('jobs_instance')::oid {database}"
    [parts] = at.ask(f"SELECT {found}")
    return tuple(parts)


def of_server(at: Store) -> tuple[Any, ...]:
    """Of MySQL, and of MariaDB, which has no such id."""
    if not getattr(at.connection, "mysql_is_mariadb", True):
        return tuple(at.ask("SELECT @@server_uuid, DATABASE()")[0])
    settings = at.connection.settings_dict
    return (settings["HOST"] or "localhost", settings["NAME"])


def file_of(at: Store) -> str:
    """The path of an SQLite database; empty: it is in memory."""
    [[path]] = at.ask("SELECT file FROM pragma_database_list WHERE name = 'main'")
    return path or ""
