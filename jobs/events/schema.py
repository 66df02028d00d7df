"""What an event says: a function's signature as a schema, in Python and as JSON Schema 2020-12."""

from __future__ import annotations

import dataclasses
import inspect
import json
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from jobs.arguments import jsonable
from jobs.conf import did_you_mean

POSSIBLE = (
    "str, int, float, bool, None, Any, datetime, date, time, Decimal, UUID, list[T], dict[str, T], tuple[T, ...], "
    "Literal, Enum, unions, TypedDict and dataclasses"
)

#: Of a union they are tried last, because they take what others take as well.
LAST = ("float", "str", "anything")

#: From a value and where it stands to what it is on the other side. Raises TypeError or ValueError.
Convert = Callable[[Any, str], Any]


class Misfit(ValueError):
    """An event's data does not fit a handler's parameters."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What an annotation stands for: ``dump`` goes from Python to JSON, ``load`` back."""

    name: str
    schema: dict[str, Any]
    dump: Convert
    load: Convert


@dataclass(frozen=True, slots=True)
class Field:
    kind: Kind
    is_required: bool


Fields = dict[str, Field]


@dataclass(frozen=True, slots=True)
class Schema:
    """The parameters of an event, or of its handler."""

    what: str
    signature: inspect.Signature
    fields: Fields
    #: The handler has ``**kwargs``.
    takes_rest: bool = False

    @classmethod
    def of(
        cls, function: Callable[..., Any], what: str = "", *, is_handler: bool = False, is_bound: bool = False
    ) -> Schema:
        """The schema of a function; ``what`` names it in errors, ``is_bound`` leaves its first parameter out.

        Raises:
            TypeError: a parameter that an event cannot have; names it and the cure.
        """
        what = what or f"{function.__name__}()"
        try:
            hints = get_type_hints(function)
        except NameError as exc:
            raise TypeError(f"{what}: {exc} in its annotations: import it where the code runs, too") from None
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[is_bound:]
        fields: Fields = {}
        for one in parameters:
            where = f"{what}: the parameter {one.name}"
            if one.kind is one.VAR_KEYWORD and is_handler:
                continue
            if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                raise TypeError(f"{where} stands for fields without a name: name each field, or take one dict or list")
            if one.kind is one.POSITIONAL_ONLY:
                raise TypeError(f"{where} is positional only, and fields have names: take the / out of the signature")
            fields[one.name] = Field(_kind(hints.get(one.name, Any), where), one.default is one.empty)
            if one.default is not one.empty:
                try:
                    fields[one.name].kind.dump(one.default, one.name)
                except (TypeError, ValueError) as exc:
                    raise TypeError(f"{where} has a default that does not fit its annotation: {exc}") from None
        takes_rest = any(one.kind is one.VAR_KEYWORD for one in parameters)
        return cls(what, signature.replace(parameters=parameters), fields, takes_rest)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a call by the names of its parameters, with the defaults. Raises TypeError as a call does."""
        for name in kwargs:
            if name not in self.fields:
                raise TypeError(f"{self.what} has no parameter {name}{did_you_mean(name, self.fields)}")
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"{self.what}: {exc} (its parameters: {', '.join(self.fields) or 'none'})") from None
        bound.apply_defaults()
        return bound.arguments

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as JSON. Raises TypeError or ValueError, with the path of what does not fit its annotation."""
        try:
            return _dump(self.fields, values, "")
        except RecursionError:
            raise ValueError(f"{self.what}: the data is nested too deeply or contains itself") from None
        except (TypeError, ValueError) as exc:
            error = TypeError if isinstance(exc, TypeError) else ValueError
            raise error(f"{self.what}: {exc}") from None

    def load(self, data: Mapping[str, Any], what: str = "") -> dict[str, Any]:
        """The arguments of a handler, of an event's data: what it has parameters for. Raises :class:`Misfit`."""
        try:
            rest = {name: data[name] for name in data if name not in self.fields} if self.takes_rest else {}
            return {**rest, **_load(self.fields, data, "")}
        except (TypeError, ValueError, RecursionError) as exc:
            raise Misfit(f"{what or self.what}: {exc}") from None

    def json_schema(self, name: str, version: int) -> dict[str, Any]:
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{name}.v{version}.json",
            "title": f"{name} version {version}",
            **_object(self.fields),
        }

    def misfits(self, other: Mapping[str, Any]) -> list[str]:
        """In which ways events of a producer's JSON Schema would not fit this handler, as sentences."""
        return list(_misfits(other, _object(self.fields), "", other))


def _kind(hint: Any, where: str, within: tuple[Any, ...] = ()) -> Kind:
    """What an annotation stands for; ``within`` are the classes around it."""
    hint = getattr(hint, "__supertype__", getattr(hint, "__value__", hint))
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Annotated, Required, NotRequired):
        return _kind(args[0], where, within)
    if origin is Literal:
        return _choice(args, where)
    if origin in (Union, UnionType):
        return _union([_kind(one, where, within) for one in args])
    if origin in (list, tuple) and args[1:] in ((), (...,)):
        return _list(origin, _kind(args[0] if args else Any, where, within))
    if origin is dict and args[:1] in ((), (str,)):
        return _dict(_kind(args[1] if args else Any, where, within))
    if origin in KINDS:
        return KINDS[origin]
    if hint in within:
        raise TypeError(f"{where} contains itself ({hint.__name__}): an event's data has an end")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice([one.value for one in hint], where, hint)
    if isinstance(hint, type) and (is_typeddict(hint) or dataclasses.is_dataclass(hint)):
        return _record(hint, where, within)
    raise TypeError(f"{where} is of {getattr(hint, '__name__', hint)}, which an event cannot carry: use {POSSIBLE}")


def _wrong(expected: str, value: Any, where: str) -> TypeError:
    return TypeError(f"{where}: expected {expected}, found {type(value).__name__}")


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return jsonable(value, where)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, where): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise TypeError(f"{where}: {type(value).__name__} is not JSON: annotate the parameter with its type")


def _key(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where}: expected str as keys, found {type(value).__name__}")
    return str(jsonable(value, where))


def _null(value: Any, where: str) -> None:
    if value is not None:
        raise _wrong("None", value, where)


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong("bool", value, where)
    return value


def _str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong("str", value, where)
    return str(jsonable(value, where))


def _int(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong("int", value, where)
    return int(value)


def _load_int(value: Any, where: str) -> int:
    # For JSON Schema 1.0 is an integer.
    return _int(int(value) if isinstance(value, float) and value.is_integer() else value, where)


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("float", value, where)
    try:
        return float(jsonable(float(value), where))
    except OverflowError:
        raise ValueError(f"{where}: the number is too large for a float") from None


def _text(kind: type, form: str, write: Convert, read: Callable[[str], Any]) -> Kind:
    """A type that JSON has as a string."""

    def dump(value: Any, where: str) -> Any:
        # isinstance() takes a datetime for a date.
        if not isinstance(value, kind) or (kind is date and isinstance(value, datetime)):
            raise _wrong(kind.__name__, value, where)
        return write(value, where)

    def load(value: Any, where: str) -> Any:
        try:
            result = read(_str(value, where))
            dump(result, where)
        except (ValueError, ArithmeticError):
            raise ValueError(f"{where}: expected {kind.__name__} ({form}), found {reprlib.repr(value)}") from None
        return result

    return Kind(kind.__name__, {"type": "string", "format": form}, dump, load)


def _datetime(value: datetime, where: str) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise ValueError(f"{where}: the datetime is naive, it says no moment: use django.utils.timezone.make_aware()")
    # RFC 3339 has no seconds in an offset.
    return (value.astimezone(UTC) if offset % timedelta(minutes=1) else value).isoformat()


def _time(value: time, where: str) -> str:
    if value.tzinfo is not None:
        raise ValueError(f"{where}: a time of day has no time zone here: use a datetime, or .replace(tzinfo=None)")
    return value.isoformat()


def _decimal(value: Decimal, where: str) -> str:
    if not value.is_finite():
        raise ValueError(f"{where}: expected a finite Decimal, found {value}")
    return str(value)


def _just_str(value: Any, where: str) -> str:
    return str(value)


KINDS: dict[Any, Kind] = {
    Any: Kind("anything", {}, _plain, _plain),
    NoneType: Kind("None", {"type": "null"}, _null, _null),
    bool: Kind("bool", {"type": "boolean"}, _bool, _bool),
    int: Kind("int", {"type": "integer"}, _int, _load_int),
    float: Kind("float", {"type": "number"}, _float, _float),
    str: Kind("str", {"type": "string"}, _str, _str),
    datetime: _text(datetime, "date-time", _datetime, lambda text: datetime.fromisoformat(text.upper())),
    date: _text(date, "date", _just_str, date.fromisoformat),
    time: _text(time, "time-local", _time, time.fromisoformat),
    Decimal: _text(Decimal, "decimal", _decimal, Decimal),
    UUID: _text(UUID, "uuid", _just_str, UUID),
}


def _choice(values: Sequence[Any], where: str, enum: Any = None) -> Kind:
    """A Literal, or an Enum, for which its values do as well: a model's field of choices has them."""
    if odd := [one for one in values if not isinstance(one, str | int | None)]:
        raise TypeError(f"{where} may be {odd[0]!r}, which is not JSON: use str, int, bool or None")
    name = "one of " + ", ".join(map(repr, values))

    def dump(value: Any, where: str) -> Any:
        value = value.value if enum and isinstance(value, enum) else value
        for known in values:
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return known
        raise ValueError(f"{where}: expected {name}, found {reprlib.repr(value)}")

    def load(value: Any, where: str) -> Any:
        value = dump(value, where)
        return enum(value) if enum else value

    return Kind(name, {"enum": list(values)}, dump, load)


def _union(kinds: list[Kind]) -> Kind:
    """The first one that fits. In any order, text that is a date is a date."""
    kinds.sort(key=lambda kind: LAST.index(kind.name) if kind.name in LAST else -1)
    name = " or ".join(kind.name for kind in kinds)

    def convert(way: str) -> Convert:
        def first(value: Any, where: str) -> Any:
            some = [kind for kind in kinds if value is None or kind is not KINDS[NoneType]]
            if len(some) == 1:
                return getattr(some[0], way)(value, where)
            for kind in some:
                try:
                    return getattr(kind, way)(value, where)
                except (TypeError, ValueError):
                    continue
            raise _wrong(name, value, where)

        return first

    return Kind(name, {"anyOf": [kind.schema for kind in kinds]}, convert("dump"), convert("load"))


def _list(kind: type, item: Kind) -> Kind:
    def convert(value: Any, where: str, way: Convert) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _wrong(kind.__name__, value, where)
        return [way(one, f"{where}[{index}]") for index, one in enumerate(value)]

    return Kind(
        f"{kind.__name__} of {item.name}",
        {"type": "array", "items": item.schema},
        lambda value, where: convert(value, where, item.dump),
        lambda value, where: kind(convert(value, where, item.load)),
    )


def _dict(item: Kind) -> Kind:
    def convert(value: Any, where: str, way: Convert) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong("dict", value, where)
        return {_key(key, where): way(one, f"{where}[{key!r}]") for key, one in value.items()}

    return Kind(
        f"dict of {item.name}",
        {"type": "object", "additionalProperties": item.schema},
        lambda value, where: convert(value, where, item.dump),
        lambda value, where: convert(value, where, item.load),
    )


def _record(kind: Any, where: str, within: tuple[Any, ...]) -> Kind:
    """A TypedDict or a dataclass."""
    is_dict = is_typeddict(kind)
    hints = get_type_hints(kind, include_extras=True)
    if is_dict:
        marks = {name: get_origin(hint) for name, hint in hints.items()}
        # Of annotations that are strings, __required_keys__ does not know the marks.
        required = {name for name, mark in marks.items() if (mark or Required) is not NotRequired}
        required &= kind.__required_keys__ | {name for name, mark in marks.items() if mark is Required}
    else:
        some = [one for one in dataclasses.fields(kind) if one.init]
        hints = {one.name: hints[one.name] for one in some}
        required = {one.name for one in some if one.default is one.default_factory is dataclasses.MISSING}
    fields = {
        name: Field(_kind(hint, f"{where}.{name}", (*within, kind)), name in required) for name, hint in hints.items()
    }

    def dump(value: Any, where: str) -> Any:
        if not isinstance(value, dict if is_dict else kind):
            raise _wrong(kind.__name__, value, where)
        return _dump(fields, value if is_dict else {name: getattr(value, name) for name in fields}, where)

    def load(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(kind.__name__, value, where)
        return kind(**_load(fields, value, where))

    return Kind(kind.__name__, _object(fields), dump, load)


def _object(fields: Fields) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: field.kind.schema for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.is_required],
        # A newer producer may add some.
        "additionalProperties": True,
    }


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _dump(fields: Fields, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in values:
        if name not in fields:
            raise TypeError(f"{_at(where, str(name))}: there is no such field{did_you_mean(str(name), fields)}")
    return _all(fields, values, where, "dump")


def _load(fields: Fields, data: Mapping[str, Any], where: str) -> dict[str, Any]:
    return _all(fields, data, where, "load")


def _all(fields: Fields, values: Mapping[str, Any], where: str, way: str) -> dict[str, Any]:
    if missing := [name for name, field in fields.items() if field.is_required and name not in values]:
        raise TypeError(f"{_at(where, missing[0])} is missing: expected {fields[missing[0]].kind.name}")
    return {
        name: getattr(field.kind, way)(values[name], _at(where, name))
        for name, field in fields.items()
        if name in values
    }


def _misfits(given: Any, taken: Any, where: str, root: Mapping[str, Any]) -> Iterator[str]:
    """Each way in which a producer's JSON Schema (``given``, out of ``root``) allows more than the handler's."""
    for branch in _branches(given, root):
        found = [_beyond(branch, one, where, root) for one in _branches(taken, {})]
        if [] not in found:
            near = next((one for one in found if one), None)
            yield from near or [f"{_quoted(where)} may be {_said(branch)}, and the handler takes {_said(taken)}."]


def _branches(schema: Any, root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schema as alternatives, each a type or a single value; an empty one stands for anything."""
    if not isinstance(schema, dict):
        return [{}]
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target.get(part, {})
        return _branches(target, root)
    if some := schema.get("anyOf") or schema.get("oneOf"):
        return [branch for one in some for branch in _branches(one, root)]
    if "enum" in schema or "const" in schema:
        return [{"const": value, "type": JSON[type(value)]} for value in schema.get("enum") or [schema["const"]]]
    if isinstance(kinds := schema.get("type"), list):
        return [branch for one in kinds for branch in _branches({**schema, "type": one}, root)]
    return [{"const": None, "type": "null"} if kinds == "null" else schema]


def _beyond(given: dict[str, Any], taken: dict[str, Any], where: str, root: Mapping[str, Any]) -> list[str] | None:
    """What is wrong inside of one branch; None if it is another type altogether."""
    if not taken:
        return []
    if "const" in taken:
        return [] if "const" in given and [given[key] for key in CONST] == [taken[key] for key in CONST] else None
    if given.get("type") != taken["type"] and (given.get("type"), taken["type"]) != ("integer", "number"):
        return None
    if taken.get("format") not in (None, given.get("format")):
        return None
    if taken["type"] == "array":
        return list(_misfits(given.get("items"), taken["items"], f"{where}[]", root))
    if taken["type"] != "object":
        return []
    properties, required = given.get("properties", {}), given.get("required", ())
    rest = given.get("additionalProperties", True)
    found: list[str] = []
    for name, inner in taken.get("properties", {}).items():
        at = _at(where, name)
        if name in taken["required"] and name not in required:
            how = "may leave it out" if name in properties else "does not have it"
            found.append(f"{_quoted(at)} is required, and the producer {how}.")
        if name in properties or isinstance(rest, dict):
            found += _misfits(properties.get(name, rest), inner, at, root)
    if isinstance(inner := taken["additionalProperties"], dict):
        for name, one in (properties if rest is False else {**properties, "*": rest}).items():
            found += _misfits(one, inner, _at(where, name), root)
    return found


def _quoted(where: str) -> str:
    return f"`{where}`" if where else "The data"


def _said(schema: Any) -> str:
    return " or ".join(
        json.dumps(one["const"])
        if "const" in one
        else SAID.get(one.get("type"), "anything") + (f" ({one['format']})" if "format" in one else "")
        for one in _branches(schema, {})
    )


JSON = {
    NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
SAID: dict[Any, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
CONST = ("const", "type")
