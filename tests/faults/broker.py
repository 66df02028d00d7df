"""The broker of a scenario."""

from __future__ import annotations

from contextlib import suppress

from celery import current_app

from jobs import publisher
from jobs.databases import side
from tests.servers import Server


class Broker:
    """Redis, RabbitMQ, or the database (``jobs``, which has no server of its own to kill)."""

    def __init__(self, name: str, server: Server | None) -> None:
        self.name = name
        self._server = server

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
        if self.name == "redis":
            self.server.call("FLUSHALL")  # type: ignore[attr-defined]
        elif self.name == "rabbitmq":
            with current_app.connection_for_write() as connection, suppress(*connection.channel_errors):
                connection.default_channel.queue_purge(current_app.conf.task_default_queue)
        else:
            with side() as database, database.cursor() as cursor:
                cursor.execute("DELETE FROM jobs_message")
        return waited

    def depth(self) -> int | None:
        """How many messages wait; None if the broker does not say."""
        return publisher.depth(current_app._get_current_object(), current_app.conf.task_default_queue)

    def mend(self) -> None:
        """As the next scenario wants to find it."""
        if self._server is not None:
            self._server.resume()
            if not self._server.is_running:
                self._server.start()
