"""A RabbitMQ of the demo's own, on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from kombu import Connection

#: Seconds that it may take to start.
START = 40.0

#: Where Debian's package puts it. It is also looked for in PATH.
DEBIAN = "/usr/lib/rabbitmq/bin"


class RabbitMQ:
    """
    Parameters:
        directory: for its data and logs, and the ids of its processes.
        ports: of the server, and of Erlang: its name service, and its nodes.
    """

    def __init__(self, directory: Path, ports: tuple[int, int, int]) -> None:
        self.directory = directory
        self.ports = ports

    @staticmethod
    def is_installed() -> bool:
        return _program("rabbitmq-server") is not None and _program("epmd") is not None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.ports[0]}//"

    def start(self) -> bool:
        """Start it; return whether it answers in time."""
        port, names, nodes = map(str, self.ports)
        (self.directory / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{port}\n")
        (self.directory / "plugins").write_text("[].\n")
        if not (self.directory / "epmd.pid").exists():
            self._run("epmd", "-port", names, "-address", "127.0.0.1")
        env = {
            "HOME": str(self.directory),
            "RABBITMQ_NODENAME": f"demo{port}@localhost",
            "RABBITMQ_DIST_PORT": nodes,
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_PID_FILE": str(self.directory / "rabbitmq-node"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Otherwise a shell changes the user.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        process = self._run("rabbitmq-server", **env)
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(Exception), Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
                return True
            time.sleep(0.1)
        return False

    def kill(self) -> None:
        """Send SIGKILL. The messages that it has confirmed are on its disk."""
        self._end("rabbitmq-server")

    def stop(self) -> None:
        """End all its processes."""
        self.kill()
        self._end("epmd")

    def _end(self, program: str) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.killpg(int((self.directory / f"{program}.pid").read_text()), signal.SIGKILL)

    def _run(self, program: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        path = _program(program)
        assert path is not None
        with (self.directory / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                [path, *arguments],
                cwd=self.directory,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.directory / f"{program}.pid").write_text(str(process.pid))
        return process


def _program(name: str) -> str | None:
    # Debian's wrapper in /usr/sbin works only for root.
    return shutil.which(name, path=DEBIAN) or shutil.which(name)


def free_ports() -> tuple[int, int, int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(3)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        first, second, third = (sock.getsockname()[1] for sock in socks)
    return first, second, third
