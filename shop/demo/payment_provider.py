"""A payment provider on this machine. It heeds the Idempotency-Key; now and then it charges and does not answer."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Ledger:
    """What was charged, by key. A file can keep it: it gets a line of JSON for each request and each charge."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.requests: list[str] = []
        self.charges: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        if path is not None and path.exists():
            for line in map(json.loads, path.read_text().splitlines()):
                if line["kind"] == "charge":
                    self.charges[line["key"]] = line["charge"]

    def charge(self, key: str, order: str, cents: int) -> dict[str, Any]:
        """Charge once for each key; a second request gets the answer of the first."""
        with self._lock:
            self.requests.append(key)
            self._write(kind="request", key=key)
            if key not in self.charges:
                self.charges[key] = {"id": f"ch_{uuid.uuid4().hex[:12]}", "order": order, "cents": cents}
                self._write(kind="charge", key=key, charge=self.charges[key])
            return self.charges[key]

    def _write(self, **line: Any) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


class Handler(BaseHTTPRequestHandler):
    """``POST /charges`` charges, ``GET /charges?key=...`` says whether that key was charged (else 404)."""

    ledger: Ledger

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        charge = self.ledger.charge(self.headers["Idempotency-Key"], body["order"], body["cents"])
        self.before_answer()
        self._answer(200, charge)

    def do_GET(self) -> None:
        [key] = parse_qs(urlsplit(self.path).query)["key"]
        charge = self.ledger.charges.get(key)
        self._answer(200 if charge else 404, charge)

    def before_answer(self) -> None:
        """The money is gone, and the client does not know it yet."""

    def _answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


class PaymentProvider:
    """
    Parameters:
        every: one charge in so many, beginning with the first, breaks the connection off in place of an answer.
    """

    def __init__(self, every: int) -> None:
        self.ledger = Ledger()
        #: How many answers the clients never got.
        self.unanswered = 0
        provider = self

        class Dying(Handler):
            ledger = provider.ledger

            def before_answer(self) -> None:
                is_first = provider.ledger.requests.count(self.headers["Idempotency-Key"]) == 1
                if is_first and len(provider.ledger.charges) % every == 1:
                    provider.unanswered += 1
                    raise ConnectionAbortedError

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A connection that was broken off is not reported."""

        self._server = Server(("127.0.0.1", 0), Dying)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def charged_twice(self) -> list[str]:
        """Orders that were charged more than once, under whatever keys."""
        orders = [charge["order"] for charge in self.ledger.charges.values()]
        return sorted({order for order in orders if orders.count(order) > 1})
