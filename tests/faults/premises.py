"""What a team or its DBA may have set: for the connections, for the role, for the server and its disk and its wire."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connection

from tests.faults.database import Database, use
from tests.helpers.servers import Missing, Postgres, as_nobody

#: The tables of a scenario, and the schema that they are in, belong to a role.
_GIVE = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
  LOOP EXECUTE format('ALTER TABLE %s OWNER TO {owner}', name); END LOOP;
  ALTER SCHEMA public OWNER TO {owner};
END $$
"""


@dataclass(frozen=True)
class Setting:
    """Of all connections, and of the roles by which they log in.

    Parameters:
        config: what ``DATABASES["default"]`` says beside host, port and name.
        logins: statements for the roles, with ``{role}``, ``{owner}``, ``{name}`` (of the database). Without one all
            log in as a superuser. With one its role, which may do nothing else, owns the tables, if it names no other
            owner. With two each worker has its own, and a third role owns them.
        proof: what is true in a body of a worker, as SQL.
        callers_too: it holds for these tests as well, which call and look.
        schema: the tables are in the schema ``team``, made by ``migrate`` or, by its role, moved there.
    """

    config: dict[str, Any] = field(default_factory=dict)
    logins: tuple[str, ...] = ()
    schema: bool = False
    proof: str = "true"
    callers_too: bool = True

    @contextmanager
    def hold(self, database: Database) -> Iterator[list[dict[str, str]]]:
        """In the block it holds; yields what the environment of each of two workers says."""
        server: Any = database.server if self.logins or self.schema else None
        at, _, name = database.url.rpartition("/")
        roles = [f"{name}_{number}" for number in range(len(self.logins))]
        owns = len(roles) == 1 and "{owner}" not in self.logins[0]
        owner = roles[0] if owns else f"{name}_owner"
        config = json.loads(json.dumps(self.config).replace("{owner}", owner))
        for role in {owner, *roles} if roles else ():
            server.execute(f"CREATE ROLE {role} LOGIN")
        for role, statements in zip(roles, self.logins, strict=True):
            for statement in filter(None, map(str.strip, statements.split(";"))):
                server.execute(statement.format(role=role, owner=owner, name=name))
        with use(database.url), connection.cursor() as cursor:
            if roles:
                cursor.execute(_GIVE.format(owner=owner))
            if self.schema and roles:
                cursor.execute("ALTER SCHEMA public RENAME TO team")
            elif self.schema:
                cursor.execute("DROP SCHEMA public CASCADE")
                cursor.execute("CREATE SCHEMA team")
        urls = [f"{at.partition('//')[0]}//{role}@{at.rpartition('@')[2]}/{name}" for role in roles] or [database.url]
        env = {"JOBS_TEST_DATABASE": json.dumps(config)}
        with use(urls[0], **config) if self.callers_too else use(database.url):
            if self.schema and not roles:
                call_command("migrate", run_syncdb=True, verbosity=0)
            yield [{"DATABASE_URL": url, **env} for url in (urls[0], urls[-1])]


class Standby(Postgres):
    """A copy that streams from its primary, and has on disk what is committed there before the commit is answered."""

    def __init__(self, primary: Postgres) -> None:
        self.primary = primary
        super().__init__(primary.settings)
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")

    def prepare(self) -> None:
        binary = self.binaries / "pg_basebackup"
        if not binary.exists():
            raise Missing("pg_basebackup")
        make_private(self.data)
        command = [*as_nobody(), str(binary), "-D", str(self.data), "-R", "-c", "fast", "-d", self.primary.url]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory)

    def promote(self) -> None:
        self.execute("SELECT pg_promote()")


class Wired(Postgres):
    """A server that workers in a network namespace reach by a bridge, as a switch: its port to them can be pulled."""

    def __init__(self) -> None:
        net = f"10.231.{os.getpid() % 250}"
        self.address, self.namespace, self._bridge = f"{net}.1", f"jobs{os.getpid()}", f"jobs{os.getpid()}"
        self._off, self._near, self._far = (f"{end}{os.getpid()}" for end in ("joff", "jnear", "jfar"))
        _ip(f"netns add {self.namespace}")
        _ip(f"link add {self._bridge} type bridge")
        # One that is not up forwards nothing, and its ports keep their carrier.
        _ip(f"link add {self._off} type bridge")
        _ip(f"link add {self._near} type veth peer name {self._far} netns {self.namespace}")
        _ip(f"link set {self._near} master {self._bridge} up")
        _ip(f"addr add {self.address}/24 dev {self._bridge}")
        _ip(f"link set {self._bridge} up")
        _ip(f"-n {self.namespace} addr add {net}.2/24 dev {self._far}")
        _ip(f"-n {self.namespace} link set {self._far} up")
        _ip(f"-n {self.namespace} link set lo up")
        super().__init__((*Postgres().settings, f"listen_addresses=127.0.0.1,{self.address}"))

    def prepare(self) -> None:
        super().prepare()
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {self.address}/24 trust\n")

    def cut(self) -> None:
        """Frames are dropped in both directions, and nobody is told."""
        _ip(f"link set {self._near} master {self._off}")

    def far_sessions(self) -> list[str]:
        """What the sessions of those in the namespace did last."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT query FROM pg_stat_activity WHERE client_addr <<= %s", [f"{self.address}/24"])
            return [query for (query,) in cursor.fetchall()]

    def mend(self) -> None:
        _ip(f"link set {self._near} master {self._bridge}")

    def stop(self) -> None:
        super().stop()
        for device in (self._near, self._bridge, self._off):
            with suppress(Missing):
                _ip(f"link del {device}")
        with suppress(Missing):
            _ip(f"netns del {self.namespace}")


class OnDisk(Postgres):
    """A server with all that it has on a disk that can be full."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__()

    @property
    def data(self) -> Path:
        return self._disk.directory / "all"


class Disk:
    """A small one (tmpfs) of its own, which can be full."""

    def __init__(self, megabytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-disk-"))
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(self.directory))
        self._ballast = self.directory / "ballast"
        make_private(self.directory / "data")

    def fill(self) -> None:
        """Until nothing more can be written to it."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        self._ballast.unlink()

    def stop(self) -> None:
        _run("umount", "-l", str(self.directory))


def make_private(directory: Path) -> None:
    """For PostgreSQL, which is nobody here if these tests are root."""
    directory.mkdir(mode=0o700)
    if command := as_nobody():
        os.chown(directory, int(command[2]), int(command[4]))


def _ip(command: str) -> None:
    _run("ip", *command.split())


def _run(*command: str) -> None:
    """Raises :class:`Missing` if this machine has it not, or lets nobody."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise Missing(command[0]) from None
    except subprocess.CalledProcessError as exc:
        raise Missing(f"the right for {' '.join(command)}: {exc.stderr.strip()}") from None
