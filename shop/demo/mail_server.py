"""A mail server on this machine that takes e-mails, refuses some, and can leave a client without its answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from email import message_from_bytes

from aiosmtpd.controller import Controller

#: An answer is held back for so many seconds at the most; it has to be less than EMAIL_TIMEOUT.
HOLD = 4.0


class MailServer:
    """
    Parameters:
        refusals: for each recipient, how many deliveries are refused for the time being (451).
        hold_at: which accepted e-mail (1 is the first) gets its answer only when ``released`` is set.
    """

    def __init__(self, refusals: Mapping[str, int], hold_at: int) -> None:
        #: The recipient and the Message-ID of every DATA command that was accepted.
        self.accepted: list[tuple[str, str]] = []
        self.refused = 0
        #: The Message-ID of every reminder; each is accepted.
        self.reminders: list[str] = []
        #: The Message-ID of the e-mail that was accepted while its sender does not know it yet.
        self.held: Future[str] = Future()
        self.released = threading.Event()
        self._refusals = Counter(refusals)
        self._hold_at = hold_at
        self.host, self.port = "127.0.0.1", _free_port()
        self._controller = Controller(self, hostname=self.host, port=self.port)

    def start(self) -> None:
        self._controller.start()

    def stop(self) -> None:
        self.released.set()
        self._controller.stop(no_assert=True)

    async def handle_DATA(self, server, session, envelope) -> str:
        [recipient] = envelope.rcpt_tos
        message_id = str(message_from_bytes(envelope.content)["Message-ID"])
        if message_id.startswith("<remind."):
            self.reminders.append(message_id)
            return "250 2.0.0 OK"
        if self._refusals[recipient] > 0:
            self._refusals[recipient] -= 1
            self.refused += 1
            return "451 4.3.0 Try again later"
        self.accepted.append((recipient, message_id))
        if len(self.accepted) == self._hold_at:
            self.held.set_result(message_id)
            await self._hold()
        return "250 2.0.0 OK"

    async def _hold(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + HOLD
        while not self.released.is_set() and clock() < deadline:
            await asyncio.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
