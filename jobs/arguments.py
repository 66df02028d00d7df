"""What may be an argument of a job, decided at the call and not after the commit.

Which types pass, and what to pass in place of others, stands in ``jobs.models.values``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jobs.models.values import Repr, check_size, decoded, jsonable

__all__ = ["Repr", "decoded", "normalize"]


def normalize(args: Any, kwargs: Any, most: int | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Return the call's arguments as JSON-native values; :func:`decoded` makes them again what they were.

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
    plain: tuple[list[Any], dict[str, Any]] = jsonable(list(args or ()), "args"), jsonable(dict(kwargs or {}), "kwargs")
    # A character of repr() is at most 6 bytes of JSON (\\u001f): most calls need no exact count.
    if most is not None and 6 * len(repr(plain)) > most:
        check_size(json.dumps(plain, ensure_ascii=False), "the arguments are", most)
    return plain
