"""The schema of an event's data, from a function's signature: in Python and as JSON Schema 2020-12."""

from __future__ import annotations

import dataclasses
import inspect
import reprlib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from jobs.conf import did_you_mean
from jobs.models.values import jsonable

#: What a conversion of wrong data raises.
WRONG = (TypeError, ValueError, OverflowError, RecursionError)


class Misfit(ValueError):
    """An event's data does not fit a handler's parameters."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What an annotation stands for."""

    name: str
    schema: dict[str, Any]
    #: Takes a value, its path, and whether to convert it to JSON or back; raises TypeError or ValueError.
    convert: Callable[[Any, str, bool], Any]
    #: Of a field: it has no default.
    is_required: bool = True


Fields = dict[str, Kind]


@dataclass(frozen=True, slots=True)
class Schema:
    """The parameters of an event, or of its handler. ``what`` names it in errors."""

    what: str
    signature: inspect.Signature
    fields: Fields
    #: The handler has ``**kwargs``.
    takes_rest: bool = False

    @classmethod
    def of(
        cls, function: Callable[..., Any], what: str = "", *, is_handler: bool = False, is_bound: bool = False
    ) -> Schema:
        """The schema of a function. A handler may have ``**kwargs``; of a bound one the first parameter is left out.

        Raises:
            TypeError: a parameter that an event cannot have; names it and the cure.
        """
        what = what or f"{function.__name__}()"
        try:
            hints = get_type_hints(function)
        except NameError as exc:
            raise TypeError(f"{what}: {exc}, in an annotation: import it outside of `if TYPE_CHECKING`") from None
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
            fields[one.name] = kind = _kind(hints.get(one.name, Any), where)
            if one.default is not one.empty:
                fields[one.name] = dataclasses.replace(kind, is_required=False)
                try:
                    kind.convert(one.default, one.name, True)
                except (TypeError, ValueError) as exc:
                    raise TypeError(f"{where} has a default that does not fit its annotation: {exc}") from None
        return cls(what, signature.replace(parameters=parameters), fields, takes_rest=len(fields) < len(parameters))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a call by the names of its parameters, with the defaults. Raises TypeError as a call does."""
        if odd := [name for name in kwargs if name not in self.fields]:
            raise TypeError(f"{self.what} has no parameter {odd[0]}{did_you_mean(odd[0], self.fields)}")
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"{self.what}: {exc} (its parameters: {', '.join(self.fields) or 'none'})") from None
        bound.apply_defaults()
        return bound.arguments

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as JSON. Raises TypeError or ValueError, with the path of what does not fit its annotation."""
        try:
            return _convert(self.fields, values, "", True)
        except WRONG as exc:
            raise (TypeError if isinstance(exc, TypeError) else ValueError)(f"{self.what}: {exc}") from None

    def load(self, data: Mapping[str, Any], args: Sequence[Any] = ()) -> dict[str, Any]:
        """A handler's arguments: the fields of an event's data that it has parameters for.

        Parameters:
            args: positional values, which Celery's tasks have, in the order of the parameters.

        Raises:
            Misfit: a field is missing, or does not fit its annotation.
        """
        own = [one.name for one in self.signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
        if len(args) > len(own):
            raise Misfit(f"{self.what}: {len(args)} values have no name, and the handler takes {len(own)} by position")
        data = {**dict(zip(own, args, strict=False)), **data}
        rest = {name: data[name] for name in data if name not in self.fields} if self.takes_rest else {}
        try:
            return rest | _convert(self.fields, data, "", False)
        except WRONG as exc:
            raise Misfit(f"{self.what}: {exc}") from None

    def json_schema(self, name: str, version: int) -> dict[str, Any]:
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"{name}.v{version}.json",
            "title": f"{name}, version {version}",
            **_object(self.fields),
        }


def _kind(hint: Any, where: str, within: tuple[Any, ...] = ()) -> Kind:
    """What an annotation stands for; ``within`` are the classes around it."""
    # Resolve NewType and the statement `type X = ...`.
    hint = getattr(hint, "__supertype__", getattr(hint, "__value__", hint))
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _kind(args[0], where, within)
    if origin is typing.Literal:
        return _choice(args, where)
    if origin in (typing.Union, UnionType):
        return _union([_kind(one, where, within) for one in args])
    if origin in (list, tuple) and args[1:] in ((), (...,)):
        return _list(origin, _kind(args[0] if args else Any, where, within))
    if origin is dict and args[:1] in ((), (str,)):
        return _dict(_kind(args[1] if args else Any, where, within))
    if origin in KINDS:
        return KINDS[origin]
    if hint in within:
        raise TypeError(f"{where} contains itself ({hint.__name__}), and an event's data has an end")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice([one.value for one in hint], where, hint)
    if isinstance(hint, type) and (typing.is_typeddict(hint) or dataclasses.is_dataclass(hint)):
        return _record(hint, where, within)
    raise TypeError(
        f"{where} is annotated with {hint!r}, which an event cannot carry: use str, int, float, bool, None, Any, "
        "datetime, date, time, Decimal, UUID, list[T], dict[str, T], tuple[T, ...], Literal, Enum, unions, TypedDict "
        "and dataclasses"
    )


def _wrong(expected: str, value: Any, where: str) -> TypeError:
    return TypeError(f"{where}: expected {expected}, found {type(value).__name__}")


def _native(kind: type, word: str) -> Kind:
    """A type that JSON has."""

    def convert(value: Any, where: str, is_dump: bool) -> Any:
        if kind is int and not is_dump and isinstance(value, float) and value.is_integer():
            # JSON Schema takes 1.0 for an integer.
            value = int(value)
        is_one = isinstance(value, int | float if kind is float else kind)
        if not is_one or (isinstance(value, bool) and kind is not bool):
            raise _wrong(kind.__name__, value, where)
        return jsonable(float(value) if kind is float else value, where)

    return Kind("None" if kind is NoneType else kind.__name__, {"type": word}, convert)


def _text(kind: type, form: str, read: Callable[[Any], Any]) -> Kind:
    """A type that is a string in JSON."""

    def convert(value: Any, where: str, is_dump: bool) -> Any:
        expected: type = kind if is_dump else str
        # isinstance() takes a datetime for a date.
        if not isinstance(value, expected) or (kind is date and isinstance(value, datetime)):
            raise _wrong(kind.__name__, value, where)
        try:
            result = value if is_dump else read(value)
            text = _written(result)
        except (ValueError, ArithmeticError) as exc:
            why = exc if is_dump else f"expected {kind.__name__} ({form}), found {reprlib.repr(value)}"
            raise ValueError(f"{where}: {why}") from None
        return text if is_dump else result

    return Kind(kind.__name__, {"type": "string", "format": form}, convert)


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        if (offset := value.utcoffset()) is None:
            raise ValueError("a naive datetime is no moment: give it its time zone with timezone.make_aware()")
        # RFC 3339 has no seconds in an offset.
        return (value.astimezone(UTC) if offset % timedelta(minutes=1) else value).isoformat()
    if isinstance(value, time) and value.tzinfo is not None:
        raise ValueError("a time of day has no time zone: pass a datetime, or value.replace(tzinfo=None)")
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"{value} is no number: pass None")
    return str(value)


def _anything(value: Any, where: str, is_dump: bool) -> Any:
    if isinstance(value, list | tuple):
        return _list(list, KINDS[Any]).convert(value, where, is_dump)
    if isinstance(value, dict):
        return _dict(KINDS[Any]).convert(value, where, is_dump)
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"{where}: {type(value).__name__} is not JSON: annotate the parameter with its type")
    return jsonable(value, where)


KINDS: dict[Any, Kind] = {
    Any: Kind("anything", {}, _anything),
    NoneType: _native(NoneType, "null"),
    bool: _native(bool, "boolean"),
    int: _native(int, "integer"),
    float: _native(float, "number"),
    str: _native(str, "string"),
    datetime: _text(datetime, "date-time", lambda text: datetime.fromisoformat(text.upper())),
    date: _text(date, "date", date.fromisoformat),
    time: _text(time, "time-local", time.fromisoformat),
    Decimal: _text(Decimal, "decimal", Decimal),
    UUID: _text(UUID, "uuid", UUID),
}
#: In a union these are tried last, because they also accept values that other types accept.
LAST = (KINDS[float], KINDS[str], KINDS[Any])


def _choice(values: Sequence[Any], where: str, enum: Any = None) -> Kind:
    """A Literal or an Enum. An Enum also accepts its plain values: a model field with choices holds those."""
    if odd := [one for one in values if not isinstance(one, str | int | None)]:
        raise TypeError(f"{where} may be {odd[0]!r}, which an event cannot carry: use str, int, bool or None")
    name = "one of " + ", ".join(map(repr, values))

    def convert(value: Any, where: str, is_dump: bool) -> Any:
        plain = value.value if enum and isinstance(value, enum) else value
        for known in values:
            if known == plain and isinstance(known, bool) == isinstance(plain, bool):
                return known if is_dump or not enum else enum(known)
        raise ValueError(f"{where}: expected {name}, found {reprlib.repr(value)}")

    return Kind(name, {"enum": list(values)}, convert)


def _union(kinds: list[Kind]) -> Kind:
    """The first type that fits. Text that is a date becomes a date, even with ``str | date``."""
    kinds.sort(key=lambda kind: LAST.index(kind) if kind in LAST else -1)
    name = " or ".join(kind.name for kind in kinds)

    def convert(value: Any, where: str, is_dump: bool) -> Any:
        some = [kind for kind in kinds if value is None or kind is not KINDS[NoneType]]
        for kind in some:
            try:
                return kind.convert(value, where, is_dump)
            except (TypeError, ValueError):
                if len(some) == 1:
                    raise
        raise _wrong(name, value, where)

    return Kind(name, {"anyOf": [kind.schema for kind in kinds]}, convert)


def _list(kind: Any, item: Kind) -> Kind:
    def convert(value: Any, where: str, is_dump: bool) -> Any:
        if not isinstance(value, list | tuple):
            raise _wrong(kind.__name__, value, where)
        items = [item.convert(one, f"{where}[{index}]", is_dump) for index, one in enumerate(value)]
        return items if is_dump else kind(items)

    return Kind(f"{kind.__name__} of {item.name}", {"type": "array", "items": item.schema}, convert)


def _dict(item: Kind) -> Kind:
    def convert(value: Any, where: str, is_dump: bool) -> Any:
        if not isinstance(value, dict):
            raise _wrong("dict", value, where)
        key = KINDS[str].convert
        return {
            key(name, f"a key of {where}", is_dump): item.convert(one, f"{where}[{name!r}]", is_dump)
            for name, one in value.items()
        }

    return Kind(f"dict of {item.name}", {"type": "object", "additionalProperties": item.schema}, convert)


def _record(kind: Any, where: str, within: tuple[Any, ...]) -> Kind:
    """A TypedDict or a dataclass."""
    is_dict = typing.is_typeddict(kind)
    hints = get_type_hints(kind, include_extras=True)
    if is_dict:
        # The class's own list misses ``Required`` and ``NotRequired`` in annotations that are strings.
        optional = kind.__optional_keys__ - {name for name in hints if get_origin(hints[name]) is typing.Required}
        optional |= {name for name in hints if get_origin(hints[name]) is typing.NotRequired}
    else:
        given = [one for one in dataclasses.fields(kind) if one.init]
        hints = {one.name: hints[one.name] for one in given}
        missing = dataclasses.MISSING
        optional = {one.name for one in given if one.default is not missing or one.default_factory is not missing}
    found = {name: _kind(hint, f"{where}.{name}", (*within, kind)) for name, hint in hints.items()}
    fields = {name: dataclasses.replace(one, is_required=name not in optional) for name, one in found.items()}

    def convert(value: Any, where: str, is_dump: bool) -> Any:
        if not isinstance(value, kind if is_dump and not is_dict else dict):
            raise _wrong(kind.__name__, value, where)
        values = {name: getattr(value, name) for name in fields} if is_dump and not is_dict else value
        result = _convert(fields, values, where, is_dump)
        return result if is_dump else kind(**result)

    return Kind(kind.__name__, _object(fields), convert)


def _object(fields: Fields) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: kind.schema for name, kind in fields.items()},
        "required": [name for name, kind in fields.items() if kind.is_required],
        # A newer producer may add fields.
        "additionalProperties": True,
    }


def _convert(fields: Fields, values: Mapping[str, Any], where: str, is_dump: bool) -> dict[str, Any]:
    paths = {name: f"{where}.{name}" if where else name for name in [*values, *fields]}
    for name in paths:
        if is_dump and name not in fields:
            raise TypeError(f"{paths[name]}: there is no such field{did_you_mean(name, fields)}")
        if name in fields and name not in values and fields[name].is_required:
            raise TypeError(f"{paths[name]} is missing: expected {fields[name].name}")
    return {name: fields[name].convert(values[name], paths[name], is_dump) for name in fields if name in values}
