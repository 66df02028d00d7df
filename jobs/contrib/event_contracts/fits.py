"""Whether the events of another service fit a handler, by the JSON Schemas of both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Any

from jobs.events.schema import Schema

SAID: dict[Any, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
TYPES = {NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def assert_fits(handler: Any, schema: Mapping[str, Any] | str | PathLike[str]) -> None:
    """Assert that events of a producer's schema fit a handler's parameters.

    Parameters:
        handler: the task that ``@handler`` made.
        schema: JSON Schema of the event, or the file that holds it.

    Raises:
        AssertionError: names each field that does not fit, and why.
    """
    producer = schema if isinstance(schema, Mapping) else json.loads(Path(schema).read_text())
    if found := misfits(producer, handler.run.schema):
        title = producer.get("title", "the event")
        raise AssertionError(f"{handler.name} does not fit {title}:\n" + "\n".join(f"* {one}" for one in found))


def misfits(given: Mapping[str, Any], taken: Schema) -> list[str]:
    """In which ways events of a producer's JSON Schema would not fit a handler's parameters, as sentences."""
    return list(_misfits(given, taken.json_schema("", 1), "", given))


def _misfits(given: Any, taken: Any, where: str, root: Mapping[str, Any]) -> Iterator[str]:
    for branch in _branches(given, root):
        found = [_beyond(branch, one, where, root) for one in _branches(taken, {})]
        if [] not in found:
            inside = next((one for one in found if one), None)
            yield from inside or [f"`{where}` may be {_said(branch)}, and the handler takes {_said(taken)}."]


def _branches(schema: Any, root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schema as alternatives, each a type or a single value. What it leaves open or we cannot read is anything."""
    if not isinstance(schema, Mapping):
        return [{}]
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target.get(part, {})
        return _branches(target, root)
    if some := schema.get("anyOf") or schema.get("oneOf"):
        return [branch for one in some for branch in _branches(one, root)]
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return [{"const": one, "type": TYPES.get(type(one), "object")} for one in values]
    if isinstance(kind := schema.get("type"), list):
        return [branch for one in kind for branch in _branches({**schema, "type": one}, root)]
    return [{"const": None, "type": "null"} if kind == "null" else dict(schema)]


def _beyond(given: dict[str, Any], taken: dict[str, Any], where: str, root: Mapping[str, Any]) -> list[str] | None:
    """What of one branch does not fit another one; None if they are different types."""
    if not taken:
        return []
    if "const" in taken:
        return [] if "const" in given and (given["const"], given["type"]) == (taken["const"], taken["type"]) else None
    if given.get("type") != taken["type"] and (given.get("type"), taken["type"]) != ("integer", "number"):
        return None
    if taken.get("format") not in (None, given.get("format")):
        return None
    if taken["type"] == "array":
        return list(_misfits(given.get("items"), taken["items"], f"{where}[]", root))
    return _beyond_object(given, taken, f"{where}." if where else "", root) if taken["type"] == "object" else []


def _beyond_object(given: dict[str, Any], taken: dict[str, Any], prefix: str, root: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    properties, rest = given.get("properties", {}), given.get("additionalProperties", True)
    for name, inner in taken.get("properties", {}).items():
        if name in taken["required"] and name not in given.get("required", ()):
            how = "may leave it out" if name in properties else "does not have it"
            found.append(f"`{prefix}{name}` is required, and the producer {how}.")
        # Fields that a schema does not name are not looked at, unless it is a dict[str, T].
        if name in properties or isinstance(rest, dict):
            found += _misfits(properties.get(name, rest), inner, f"{prefix}{name}", root)
    if isinstance(inner := taken["additionalProperties"], dict):
        for name, one in (properties if rest is False else {**properties, "*": rest}).items():
            found += _misfits(one, inner, f"{prefix}{name}", root)
    return found


def _said(schema: Any) -> str:
    said = []
    for one in _branches(schema, {}):
        form = f" ({one['format']})" if "format" in one else ""
        said.append(json.dumps(one["const"]) if "const" in one else SAID.get(one.get("type"), "anything") + form)
    return " or ".join(said)
