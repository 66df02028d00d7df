"""The servers of a run. They have free ports, and their default settings but for the number of connections.

They die with the benchmark.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.helpers import servers
from tests.helpers.servers import Missing, Server


class Redis(servers.Redis):
    """Redis with its default snapshots. The system's Redis is preferred to that of the wheel."""

    def command(self) -> list[str]:
        found = super().command()
        if system := shutil.which("redis-server", path="/usr/local/bin:/usr/bin"):
            found[found.index("--port") - 1] = system
        place = found.index("--save")
        return [*found[:place], *found[place + 2 :]]


@dataclass
class Servers:
    running: dict[str, Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def pids(self) -> dict[str, int]:
        return {name: server.process.pid for name, server in self.running.items() if server.process}

    def urls(self) -> dict[str, str]:
        return {name: server.url for name, server in self.running.items()}

    def versions(self) -> dict[str, str]:
        return {name: _VERSIONS[name](server) for name, server in self.running.items()}


#: The only setting that is not PostgreSQL's own: eight workers of eight processes are measured, too.
SETTINGS = ("max_connections=200",)

#: Each commit of PostgreSQL waits for so many microseconds, also if nobody else commits.
SLOW = ("commit_delay=2000", "commit_siblings=0")


@contextmanager
def running(names: Iterable[str], has_slow_commits: bool = False) -> Iterator[Servers]:
    """Start these servers. Those that are not installed are listed as missing, with the reason."""
    found = Servers()
    starts = {
        "postgres": lambda: servers.Postgres(settings=(*SETTINGS, *(SLOW if has_slow_commits else ()))),
        "redis": Redis,
        "rabbitmq": servers.RabbitMQ,
    }
    with ExitStack() as stack:
        for name in sorted(names):
            sys.stderr.write(f"starting {name}\n")
            try:
                server = starts[name]()
            except Missing as error:
                found.missing[name] = f"not installed: {error}"
            else:
                stack.callback(server.stop)
                found.running[name] = server
        yield found


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="jobs-benchmarks-")


def _postgres(server: Server) -> str:
    import psycopg

    with psycopg.connect(server.url) as connection:
        [version, *_] = str(connection.execute("SHOW server_version").fetchone()[0]).split()  # type: ignore[index]
    return version


def _redis(server: Server) -> str:
    import redis

    with redis.Redis.from_url(server.url) as client:
        return str(client.info("server")["redis_version"])


def _rabbitmq(server: Server) -> str:
    import amqp

    with amqp.Connection(host=f"127.0.0.1:{server.port}") as connection:
        connection.connect()
        return str(connection.server_properties["version"])


_VERSIONS = {"postgres": _postgres, "redis": _redis, "rabbitmq": _rabbitmq}
