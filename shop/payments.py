"""The payment provider's API, as far as the shop needs it."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings


class PaymentError(Exception):
    """The provider answered, and refused."""


def charge(order: str, cents: int, idempotency_key: str) -> dict[str, Any]:
    """Charge an order. For one key the provider charges once, and repeats its answer.

    Raises:
        PaymentError: the provider refused; nothing was charged.
        ConnectionRefusedError: the provider was not reached; nothing was charged.
        OSError, http.client.HTTPException: there is no answer, or none to rely on. Nobody knows whether it charged.
    """
    status, answer = _request("POST", "/charges", {"order": order, "cents": cents}, idempotency_key)
    if status == 402:
        raise PaymentError(f"the payment was refused: {answer}")
    if status != 200:
        # An internal error of the provider (500) may have happened before the charge or after it.
        raise http.client.HTTPException(f"the provider answered {status}: {answer}")
    return answer


def find_charge(idempotency_key: str) -> dict[str, Any] | None:
    """The charge of a key; None if nothing was charged."""
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
