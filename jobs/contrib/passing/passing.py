"""Whether an exception is temporary, so that another attempt may succeed: by its class, its package, or its status."""

from __future__ import annotations

import errno
import http.client
import smtplib
import socket
import ssl
import urllib.error
from typing import Any

from django.db import Error, InterfaceError, OperationalError

#: The other side could not be reached, or hung up.
KNOWN = (
    *(ConnectionError, TimeoutError, socket.gaierror, socket.herror, ssl.SSLEOFError, ssl.SSLZeroReturnError),
    http.client.IncompleteRead,
)
#: The errors of a network that is down, or has no route to the other side.
UNREACHABLE = {getattr(errno, name) for name in "ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH".split()}
#: As ``KNOWN``, for classes of other packages, by package and name: most of them need not be installed.
BY_NAME = {
    *(f"requests.{name}" for name in ("ConnectionError", "Timeout", "ChunkedEncodingError")),
    *(f"httpx.{name}" for name in ("TimeoutException", "NetworkError", "RemoteProtocolError")),
    *(f"urllib3.{name}" for name in ("TimeoutError", "ProtocolError", "NewConnectionError", "MaxRetryError")),
    *(f"redis.{name}" for name in ("ConnectionError", "TimeoutError")),
    "kombu.OperationalError",
    "aiohttp.ClientConnectionError",
    "botocore.HTTPClientError",
}
#: Classes with an HTTP status, which is an attribute of the exception, or of its response.
OF_A_STATUS = {"urllib.HTTPError", "requests.HTTPError", "httpx.HTTPStatusError", "aiohttp.ClientResponseError"}
#: Not temporary: a wrong certificate will still be wrong tomorrow.
FINAL = {"requests.SSLError", "aiohttp.ClientSSLError", "botocore.SSLError", "redis.AuthenticationError"}
#: MySQL's error numbers: the server cannot be reached, has gone away, or has too many connections.
MYSQL_IS_AWAY = (1040, 2002, 2003, 2006, 2013)


def may_pass(exc: BaseException) -> bool:
    """Whether another attempt may succeed: the other side was away, or too busy."""
    names = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(exc).__mro__}
    if names & FINAL or isinstance(exc, ssl.SSLCertVerificationError):
        return False
    if names & OF_A_STATUS:
        status = _status(exc)
        return status == 429 or 500 <= status < 600
    if isinstance(exc, urllib.error.URLError):
        return isinstance(exc.reason, BaseException) and may_pass(exc.reason)
    if isinstance(exc, smtplib.SMTPException):
        return _may_pass_of_mail(exc)
    if isinstance(exc, Error):
        return _is_away(exc)
    return isinstance(exc, KNOWN) or bool(names & BY_NAME) or getattr(exc, "errno", None) in UNREACHABLE


def _status(exc: Any) -> int:
    places = ((getattr(exc, "response", None), "status_code"), (exc, "code"), (exc, "status"))
    found = (getattr(each, name, None) for each, name in places)
    return next((status for status in found if isinstance(status, int)), 0)


def _may_pass_of_mail(exc: smtplib.SMTPException) -> bool:
    """In SMTP 4xx means that it may succeed later, and 5xx that it will not."""
    if isinstance(exc, smtplib.SMTPRecipientsRefused):
        return any(400 <= code < 500 for code, _text in exc.recipients.values())
    if isinstance(exc, smtplib.SMTPResponseException):
        return isinstance(exc, smtplib.SMTPConnectError) or 400 <= exc.smtp_code < 500
    return isinstance(exc, smtplib.SMTPServerDisconnected)


def _is_away(exc: Error) -> bool:
    """Whether a database cannot be reached. It is a second one: a job whose own database is away is handed back."""
    if not isinstance(exc, OperationalError | InterfaceError):
        return False
    cause = exc.__cause__
    if code := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return str(code).startswith(("08", "53", "57P"))
    driver = type(cause).__module__.partition(".")[0]
    if driver == "sqlite3":
        return any(text in str(exc) for text in ("is locked", "unable to open", "is full"))
    if driver.startswith("psycopg"):
        # The connection works: the body went on while one of its own queries was not finished.
        return "another command is already in progress" not in str(exc)
    return next(iter(exc.args), None) in MYSQL_IS_AWAY
