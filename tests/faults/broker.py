"""The broker of a scenario."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import kombu
from celery import current_app

from jobs import publisher
from jobs.databases import side
from tests.servers import RabbitMQ, Redis, Server


class Broker:
    """Redis, RabbitMQ, or the database (``jobs``, which has no server of its own to kill)."""

    def __init__(self, name: str, server: Server | None) -> None:
        self.name = name
        self._server = server
        self._undo: list[tuple[str, ...]] = []

    @property
    def server(self) -> Server:
        assert self._server is not None, f"{self.name} has no server of its own: leave it out of @brokers(...)"
        return self._server

    @property
    def url(self) -> str:
        return "jobs://" if self._server is None else self._server.url

    def kill(self) -> None:
        """SIGKILL. Redis forgets everything, RabbitMQ keeps what it has written."""
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def start_empty(self) -> None:
        """Come back on an empty disk: no message, no queue, no binding."""
        self.server.wipe()
        self.server.start()

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, and nobody answers."""
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def drop_messages(self) -> int:
        """Everything that waits is gone, and with FLUSHALL the bindings of Redis' queues; return how many it were."""
        waited = self.depth() or 0
        if isinstance(self._server, Redis):
            self._server.call("FLUSHALL")
        elif self._server is not None:
            with current_app.connection_for_write(self.url) as connection, suppress(*connection.channel_errors):
                connection.default_channel.queue_purge(current_app.conf.task_default_queue)
        else:
            with side() as database, database.cursor() as cursor:
                cursor.execute("DELETE FROM jobs_message")
        return waited

    def depth(self) -> int | None:
        """How many messages wait in this very broker; None if it does not say."""
        return self._ask("message_count")

    def consumers(self) -> int | None:
        """How many workers consume; None if it does not say (only RabbitMQ does)."""
        return self._ask("consumer_count")

    def _ask(self, what: str) -> int | None:
        with current_app.connection_for_write(self.url, connect_timeout=1) as connection:
            try:
                channel = connection.default_channel
                return int(getattr(channel.queue_declare(current_app.conf.task_default_queue, passive=True), what))
            except connection.channel_errors:
                return 0
            except (OSError, *connection.connection_errors):
                return None

    def declare_exchange(self, name: str) -> None:
        """An exchange that leads nowhere."""
        with current_app.connection_for_write(self.url) as connection:
            kombu.Exchange(name)(connection.default_channel).declare()

    def bind(self, exchange: str, routing_key: str) -> None:
        """Let the exchange lead to the workers' queue."""
        name = current_app.conf.task_default_queue
        with current_app.connection_for_write(self.url) as connection:
            kombu.Queue(name, kombu.Exchange(exchange), routing_key=routing_key)(connection.default_channel).declare()

    # RabbitMQ only

    def alarm(self) -> None:
        """No memory is left: it takes no message from anybody, and still hands out what it has."""
        self._control("set_vm_memory_high_watermark", "0", undo=("set_vm_memory_high_watermark", "absolute", "2GB"))

    def limit_queue(self, length: int) -> None:
        """Refuse messages while so many wait."""
        policy = f'{{"max-length": {length}, "overflow": "reject-publish"}}'
        queue = f"^{current_app.conf.task_default_queue}$"
        self._control("set_policy", "full", queue, policy, "--apply-to", "queues", undo=("clear_policy", "full"))

    def impatient(self, seconds: float) -> None:
        """Close the channel of whoever has not acknowledged a message for so long; for channels opened from now on."""

        def settings(timeout: float, tick: float) -> tuple[str, str]:
            names = {"consumer_timeout": timeout, "channel_tick_interval": tick}
            calls = (f"application:set_env(rabbit, {name}, {value * 1000:.0f})" for name, value in names.items())
            return "eval", ", ".join(calls) + "."

        self._control(*settings(seconds, 0.5), undo=settings(1800, 60))

    def create_vhost(self, name: str) -> None:
        self._control("add_vhost", name, undo=("delete_vhost", name))
        self._control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")

    def calm(self) -> None:
        """Alarms, limits and virtual hosts are gone again."""
        while self._undo:
            self._control(*self._undo.pop())

    def _control(self, *command: str, undo: tuple[str, ...] = ()) -> None:
        assert isinstance(self._server, RabbitMQ), "@pytest.mark.brokers('rabbitmq')"
        if undo:
            self._undo.append(undo)
        self._server.control(*command)

    def mend(self) -> None:
        """As the next scenario wants to find it."""
        if self._server is not None:
            self._server.resume()
            if not self._server.is_running:
                self._server.start()
        self.calm()


@contextmanager
def callers_use(url: str) -> Iterator[None]:
    """Point this process at another broker, and not the workers that it starts."""
    before = current_app.conf.broker_url
    _point(url)
    try:
        yield
    finally:
        _point(before)


def _point(url: str) -> None:
    current_app.conf.broker_url = url
    publisher.forget_connections()
