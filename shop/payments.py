"""The payment provider's API, as far as the shop needs it."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings


class PaymentError(Exception):
    """The provider answered, and refused."""


def charge(order: str, cents: int, idempotency_key: str) -> dict[str, Any]:
    """Charge an order; under the same key the provider does it once, and repeats its answer.

    Raises:
        PaymentError: refused; nothing was charged.
        ConnectionRefusedError: nobody was reached; nothing was charged.
        OSError, http.client.HTTPException: no answer, or none to rely on. Nobody knows.
    """
    status, answer = _request("POST", "/charges", {"order": order, "cents": cents}, idempotency_key)
    if status == 402:
        raise PaymentError(f"the payment was refused: {answer}")
    if status != 200:
        # Also of an error in the provider's own house (500) nobody knows whether it struck before the charge or after.
        raise http.client.HTTPException(f"the provider answered {status}: {answer}")
    return answer


def find_charge(idempotency_key: str) -> dict[str, Any] | None:
    """What was charged under a key, if anything was."""
    status, answer = _request("GET", f"/charges?key={quote(idempotency_key)}")
    if status not in (200, 404):
        raise http.client.HTTPException(f"the provider answered {status}: {answer}")
    return answer if status == 200 else None


def _request(method: str, path: str, body: Any = None, idempotency_key: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(settings.PAYMENT_URL).netloc, timeout=settings.PAYMENT_TIMEOUT)
    try:
        headers = {"Content-Type": "application/json"}
        if idempotency_key:
            headers["Idempotency-Key"] = idempotency_key
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
