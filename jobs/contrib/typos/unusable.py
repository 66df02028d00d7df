"""What is wrong with ``settings.JOBS``: unknown keys, and values that cannot work."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from inspect import signature
from typing import Any, get_args

from django.conf import settings as django_settings

from jobs import extensions
from jobs.conf import did_you_mean, every, made, task_option_names

#: Every number has to be below this. It is 3,000 years in seconds, and all databases can hold it.
MOST = 1e11

#: Keys that map names or patterns to options, with an example.
OPTIONS = {"TASKS": "{'post_office.*': {'atomic': False}}", "QUEUES": "{'mail': {'concurrency': 3}}"}

#: What the value of a key that is no number must be (a None that the key allows is not checked): a pattern of its
#: text, or a function that accepts it; and the words for it. Extensions have rules of theirs (``settings.py``).
RULES: dict[str, tuple[str | Callable[[Any], bool], str]] = {
    "VERSION": (".{1,32}", "a text of at most 32 characters, or None, not {!r}"),
}


def problems(given: Any) -> list[str]:
    """What is wrong with ``settings.JOBS``: one sentence for each problem, with the cure."""
    if not isinstance(given, dict):
        return [f"JOBS must be a dict, not {type(given).__name__}."]
    known = {field.name: field.type for field in fields(every())}
    found = [f"JOBS has no key {key!r}{did_you_mean(str(key), known)}" for key in given if key not in known]
    values = made({key: value for key, value in given.items() if key in known})
    for name, kind in known.items():
        value = getattr(values, name)
        if value is not None or type(None) not in get_args(kind):
            found += [f"JOBS[{name!r}]{says}" for says in _problems_of(name, kind, value)]
    if found:
        return found
    if values.DEAD_AFTER < 3 * values.HEARTBEAT:
        found.append("JOBS['DEAD_AFTER'] must be at least three times JOBS['HEARTBEAT'].")
    if not values.DATABASES:
        found.append("JOBS['DATABASES'] must name at least one database.")
    unknown = [alias for alias in values.DATABASES if alias not in django_settings.DATABASES]
    return found + [f"JOBS['DATABASES'] names {alias!r}, which settings.DATABASES does not have." for alias in unknown]


def _problems_of(name: str, kind: Any, value: Any) -> Iterator[str]:
    if name in OPTIONS:
        yield from _problems_of_options(name, value)
    elif name in (rules := _rules()):
        rule, says = rules[name]
        is_text = isinstance(rule, str) and isinstance(value, str)
        if not (re.fullmatch(rule, value, re.DOTALL) if is_text else callable(rule) and rule(value)):
            yield f" must be {says.format(value)}."
    elif kind == Sequence[str]:
        is_list = isinstance(value, list | tuple | set | frozenset)
        if isinstance(value, str):
            yield " must be a list, not a string."
        elif not is_list or not all(isinstance(each, str | bytes) for each in value):
            # Perhaps secrets: of the value only the types are shown.
            kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in value)) if is_list else type(value).__name__
            yield f" must be a list of texts, and not of {kinds}."
    elif kind is bool:
        if not isinstance(value, bool):
            yield f" must be True or False, not {value!r}."
    elif not _is_above_0(value):
        yield f" must be a number above 0, and below {MOST:g} (a time: in seconds, or a timedelta), not {value!r}."
    elif kind is int and not isinstance(value, int):
        yield f" must be a whole number, not {value!r}."


@cache
def _rules() -> dict[str, Any]:
    return RULES | {key: rule for module in extensions.settings() for key, rule in getattr(module, "RULES", {}).items()}


def _is_above_0(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST


def _problems_of_options(name: str, given: Any) -> Iterator[str]:
    if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
        yield f" must be a dict of dicts, {OPTIONS[name]}, not {given!r}."
        return
    # Without options no extension is asked: extensions are not loaded before Django has its apps.
    checks = extensions.through("queue_options") if given and name == "QUEUES" else ()
    read_by = {check: [*signature(check).parameters] for check in checks}
    # max_retries sets how often a task whose code is not yours is retried: with 0, not at all.
    of_tasks = [*task_option_names(), "max_retries"] if given and name == "TASKS" else []
    known = of_tasks or [each for names in read_by.values() for each in names]
    says = f"The options are {', '.join(known)}." if known else "Nothing that is installed reads one: leave it out."
    for pattern, options in given.items():
        if odd := [str(each) for each in options if each not in known]:
            yield from (f"[{pattern!r}] has no option {each!r}{did_you_mean(each, known)} {says}" for each in odd)
            continue
        for check, names in read_by.items():
            try:
                check(**{each: options[each] for each in names if each in options})
            except ValueError as exc:
                yield f"[{pattern!r}]: {exc}."
