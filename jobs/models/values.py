"""What a row can hold: JSON that keeps the types of its values, text that every database can store, and ids."""

from __future__ import annotations

import base64
import datetime
import decimal
import hashlib
import json
import math
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from celery.canvas import Signature
from django.db.models import Model, QuerySet
from django.utils.dateparse import parse_duration
from django.utils.duration import duration_iso_string
from django.utils.functional import Promise
from kombu.exceptions import EncodeError
from kombu.utils.json import dumps, object_hook, register_type

#: Types that are not JSON, and what to pass instead; the last entry is for every other type.
_CURES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Model, "pass its primary key (.pk) and read the row again in the task: the object may be stale when it runs"),
    (QuerySet, "pass a list of primary keys and read the rows again in the task"),
    ((set, frozenset), "pass a sorted list"),
    (Promise, "pass str(value): a lazy translation belongs to one language"),
    (object, "pass str, int, float, bool, None, a date or time, Decimal, UUID, bytes, lists or dicts"),
)

#: Types that are kept in addition to JSON's own, tagged as Celery's encoder does it.
TYPES = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, bytes, bytearray, memoryview)

#: The text that :func:`scrub` inserts where it cut characters.
CUT = re.compile(r"\n\.\.\. \d+ characters cut \.\.\.\n")

#: How deeply lists and dicts may be nested. A page or a body that reads them has a deeper stack than the call had.
DEPTH = 200

#: The most characters of a key that every database can index.
MAX_KEY = 255


class Repr(str):
    """The ``repr()`` of a result that is not JSON, which is all that is kept. It cannot be an argument of a job."""


# kombu knows all the types but these two, and kombu also decodes the bodies of links and chords.
register_type(datetime.timedelta, "timedelta", duration_iso_string, parse_duration)
register_type(Repr, "repr", str, Repr)


def check_size(text: str, what: str, most: int) -> None:
    """Raise ValueError if the JSON has more than ``most`` bytes (``JOBS["MAX_ARGS_BYTES"]``)."""
    if (size := len(text.encode())) > most:
        raise ValueError(
            f"{what} {size} bytes of JSON, more than JOBS['MAX_ARGS_BYTES'] ({most}): store the data and pass its key"
        )


#: Names of types that only an extension writes into a row. A caller's own JSON must not pass for one.
RESERVED: set[Any] = set()


def normalize(args: Any, kwargs: Any, most: int | None = None) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a job as JSON-native values; :func:`decoded` restores the originals.

    A value that cannot be kept is refused at the call, and not after the commit.

    Tuples become lists, subclasses of ``str``, ``int``, ``float`` and ``dict`` become the plain type,
    signatures become their dict, and the ``TYPES`` a dict that names the type.

    Raises:
        TypeError: a value of another type; names the argument and the cure.
        ValueError: text or numbers that a database would refuse; more than ``most`` bytes of JSON.
    """
    if not isinstance(args, list | tuple | None):
        raise TypeError(f"args must be a list or tuple, not {type(args).__name__}: write ({args!r},) for one argument")
    if not isinstance(kwargs, Mapping | None):
        raise TypeError(f"kwargs must be a dict, not {type(kwargs).__name__}")
    try:
        plain = _plain(list(args or ()), "args"), _plain(dict(kwargs or {}), "kwargs")
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None
    # A character of repr() is at most 6 bytes of JSON (\\u001f), so most calls need no exact count.
    if most is not None and 6 * len(repr(plain)) > most:
        check_size(json.dumps(plain, ensure_ascii=False), "the arguments are", most)
    return plain


def jsonable(value: Any, where: str) -> Any:
    """``value`` as plain JSON data; ``where`` names it in the errors (:func:`normalize` lists them)."""
    try:
        return _plain(value, where)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None


def storable(value: Any, where: str) -> Any:
    """The value as plain JSON, by Celery's own encoder (signatures, dates, UUIDs)."""
    try:
        return jsonable(json.loads(dumps(value)), where)
    except RecursionError:
        raise ValueError(f"{where} of this call is nested too deeply") from None
    except (TypeError, EncodeError) as exc:
        raise TypeError(f"{where} of this call cannot be stored as JSON: {exc}") from exc


def canonical(value: Any) -> str:
    """The value as JSON; equal values, also of the tagged types, give the same text."""
    return str(dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def _plain(value: Any, where: str, left: int = DEPTH) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON does not know: pass None or a string")
        return float(value)
    if not left:
        where = where.partition("[")[0]
        raise ValueError(f"{where} is nested too deeply ({DEPTH} levels at the most) or contains itself")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]", left - 1) for index, item in enumerate(value)]
    if isinstance(value, Signature):
        # Celery's own encoder: the options of a signature may hold dates and nested signatures.
        return _plain(json.loads(dumps(value)), where, left)
    if isinstance(value, bytes | bytearray | memoryview):
        return {"__type__": "base64", "__value__": base64.b64encode(value).decode()}
    if isinstance(value, TYPES):
        return json.loads(dumps(value))
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{where} has the key {odd[0]!r}; JSON keys are strings: convert it with str()")
        if value.keys() == {"__type__", "__value__"} and str(value["__type__"]) in RESERVED:
            raise ValueError(f"{where} poses as an {value['__type__']} value, which no caller may give: pass the value")
        return {_text(key, where): _plain(item, f"{where}[{key!r}]", left - 1) for key, item in value.items()}
    cure = next(cure for kinds, cure in _CURES if isinstance(value, kinds))
    raise TypeError(f"{where} is a {type(value).__name__}, which a job cannot carry: {cure}")


def decoded(value: Any) -> Any:
    """A deep copy of what a row holds, with the types that the caller gave."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__type__", "__value__"}:
        # A caller's own dict may look like this by chance.
        with suppress(ValueError, TypeError, ArithmeticError, AttributeError):
            return object_hook(value)
    return {key: decoded(item) for key, item in value.items()}


def _text(value: str, where: str) -> str:
    if isinstance(value, Repr):
        raise TypeError(f"{where} is only the repr() of a result that was not JSON ({value[:100]}): {_CURES[-1][1]}")
    value = str.__str__(value)
    if "\0" in value:
        cure = "which PostgreSQL refuses: remove it with .replace('\\0', '')"
        raise ValueError(f"{where} contains a NUL character, {cure}")
    try:
        value.encode()
    except UnicodeEncodeError:
        cure = "which is no valid text: decode the bytes with errors='replace'"
        raise ValueError(f"{where} contains a lone surrogate, {cure}") from None
    return value


def scrub(text: str, limit: int = 20_000) -> str:
    """Return text that every database stores: NUL and lone surrogates escaped, ``limit`` characters at the most."""
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) > limit:
        # With the words in between the result is still not longer than ``limit``.
        half = (limit - 40) // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"
    return text


def plain(value: Any) -> str:
    """The text of a value: ``str()`` of a member of a ``(str, Enum)`` is the member's name."""
    return str(value.value if isinstance(value, Enum) else value)


def parse_uuid(text: str) -> uuid.UUID | None:
    """The UUID that the text is; None for any other text."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def as_uuid(value: Any) -> uuid.UUID | None:
    """A job's id as a UUID; a foreign id that is no UUID becomes its uuid5."""
    return (parse_uuid(str(value)) or uuid.uuid5(uuid.NAMESPACE_OID, str(value))) if value else None


def safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as exc:
        return f"<{type(value).__name__}, whose repr() raised {type(exc).__name__}>"


def named(task: str, key: str | None) -> str:
    """The key of a limit or an order: the task's name, and the key if there is one; hashed if it is too long."""
    text = task if key is None else f"{task}:{key}"
    return text if len(text) <= MAX_KEY else f"{text[: MAX_KEY - 65]}:{hashlib.sha256(text.encode()).hexdigest()}"
