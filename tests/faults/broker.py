"""The broker of a scenario."""

from __future__ import annotations

from contextlib import suppress

from celery import current_app

from jobs.store.databases import side
from tests.helpers.servers import Redis, Server


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

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, and nobody answers."""
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def drop_messages(self) -> None:
        """Everything that waits is gone, and with FLUSHALL the bindings of Redis' queues."""
        if isinstance(self._server, Redis):
            self._server.call("FLUSHALL")
        elif self._server is not None:
            with current_app.connection_for_write(self.url) as connection, suppress(*connection.channel_errors):
                connection.default_channel.queue_purge(current_app.conf.task_default_queue)
        else:
            with side() as database, database.cursor() as cursor:
                cursor.execute("DELETE FROM jobs_message")

    def mend(self) -> None:
        """As the next scenario wants to find it."""
        if self._server is not None:
            self._server.resume()
            if not self._server.is_running:
                self._server.start()
