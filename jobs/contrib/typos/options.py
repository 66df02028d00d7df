"""The options of a task's declaration and of a call: which exist, what each may be, and the likely cure of a typo.

Celery turns every keyword of ``@shared_task`` into an attribute, and every keyword of ``apply_async`` into a property
of the message: a misspelt one has no effect and raises no error.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import celery
import kombu

from jobs import extensions
from jobs.calling import calls
from jobs.calling.calls import KEPT
from jobs.conf import TASK_OPTIONS, conf, did_you_mean, task_option_names
from jobs.contrib.passing.backoff import OF_RETRIES
from jobs.models.columns import OPTIONS

#: Accepted by ``apply_async`` because groups, beat, retries and eager calls pass them. They are not kept: a job is no
#: message.
PLUMBING = frozenset(
    "producer connection publisher router add_to_parent result_cls retry retry_policy timeout confirm_timeout "
    "task_type event_dispatcher delivery_mode compression immediate mandatory declare exchange_type origin "
    "redelivered throw logfile loglevel".split()
)
#: Options of other packages: celery-once, celery-heimdall, django-celery-beat.
OTHERS = frozenset("once heimdall periodic_task_name".split())

#: The options of a call.
OF_A_CALL = (
    PLUMBING
    | OTHERS
    | frozenset(KEPT)
    | frozenset(
        "task_id link link_error using countdown eta expires queue exchange routing_key priority serializer time_limit "
        "soft_time_limit ignore_result headers retries root_id parent_id route_name correlation_id".split()
    )
)

_PLAIN = (type(None), bool, int, str)
#: The options of a task, without those of extensions: ours, those that Celery declares, and those that it only reads.
#: ``app.task`` takes ``lazy``, ``shared`` and ``filter`` for itself; ``shared_task`` passes them on.
OF_A_TASK = (
    frozenset([*TASK_OPTIONS, *OF_RETRIES])
    | {name for name, value in vars(celery.Task).items() if name[0].islower() and isinstance(value, _PLAIN)}
    | frozenset(
        "queue exchange exchange_type routing_key delivery_mode compression immediate mandatory argsrepr_maxsize "
        "store_eager_result lazy shared filter".split()
    )
)

#: What a value must be: in words, and the types that it may have; a bool is no number. None always passes: Celery takes
#: it as its default.
Rule = tuple[str, tuple[type, ...]]

BOOL: Rule = ("True or False", (bool,))
WHOLE: Rule = ("a whole number", (int,))
SECONDS: Rule = ("a number of seconds (of a timedelta: .total_seconds())", (int, float))
EXCEPTIONS: Rule = ("a tuple of exception classes, (ConnectionError,)", (tuple, list, set, frozenset))
TEXT: Rule = ("text", (str,))
MAPPING: Rule = ("a dict", (Mapping,))
MOMENT: Rule = (calls.MOMENT, (int, float, datetime.datetime, str))
LIMITS = dict.fromkeys(("time_limit", "soft_time_limit"), SECONDS)

RULES_OF_A_TASK: dict[str, Rule] = {
    "atomic": BOOL,
    "unique_for": SECONDS,
    "autoretry_for": EXCEPTIONS,
    "dont_autoretry_for": EXCEPTIONS,
    "throws": EXCEPTIONS,
    "max_retries": WHOLE,
    "default_retry_delay": SECONDS,
    "retry_backoff": ("True, False, or a number of seconds", (bool, int, float)),
    "retry_backoff_max": SECONDS,
    "retry_jitter": BOOL,
    "retry_kwargs": MAPPING,
    **LIMITS,
}
RULES_OF_A_CALL: dict[str, Rule] = {
    "countdown": SECONDS,
    "eta": MOMENT,
    "expires": MOMENT,
    "queue": ("the name of a queue", (str, kombu.Queue)),
    "exchange": ("the name of an exchange", (str, kombu.Exchange)),
    "routing_key": TEXT,
    "priority": WHOLE,
    "shadow": TEXT,
    "headers": MAPPING,
    "retries": WHOLE,
    **LIMITS,
}


def check_declaration(task: type[celery.Task], declared: Collection[str]) -> None:
    """Refuse keywords of a decorator that are no options, and values that cannot work.

    Parameters:
        declared: the names in the body of the task's class, if the decorator made it.

    Raises:
        TypeError: names the option, and the cure.
        ValueError: the task's name is too long for a row.
    """
    if len(task.name or "") > 255:
        raise ValueError(f"{task.name[:60]}... is longer than 255 characters: pass a shorter name=")
    options = extensions.merged("options")
    known = OF_A_TASK | options.keys()
    for name in declared:
        if name.startswith("_") or name in known or name in OTHERS or name in conf().TASK_OPTIONS:
            continue
        # A base class of the project, or of a package, may have options of its own.
        if any(name in vars(each) or name in vars(each).get("__annotations__", ()) for each in task.__mro__[1:]):
            continue
        raise TypeError(
            f"{name}= is no option of a task{did_you_mean(name, known)} What other code reads of a task is named "
            "in JOBS['TASK_OPTIONS'], or is an attribute of its base class"
        )
    for name, rule in {**RULES_OF_A_TASK, **options}.items():
        value = inspect.getattr_static(task, name, None)
        # A property has a value only when the task exists.
        if not hasattr(type(value), "__get__"):
            _check(name, value, rule)


def check_call(options: Mapping[str, Any]) -> None:
    """Refuse keywords that are no options of a call. ``TypeError`` names the option, and the cure."""
    for name, value in options.items():
        if (rule := RULES_OF_A_CALL.get(name) or OPTIONS.get(name)) is not None:
            _check(name, value, rule)
        elif name not in OF_A_CALL:
            _refuse(name, options)


def _check(name: str, value: Any, rule: Rule) -> None:
    if value is None:
        return
    says, kinds = rule
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if rule is EXCEPTIONS and fits:
        fits = all(isinstance(each, type) and issubclass(each, BaseException) for each in value)
    if not fits:
        raise TypeError(f"{name}={value!r} must be {says}")


def _refuse(name: str, options: Mapping[str, Any]) -> None:
    if name in conf().TASK_OPTIONS or name in (options.get("stamped_headers") or ()):
        return
    if name in task_option_names() or name in OF_RETRIES:
        raise TypeError(f"{name}= is an option of the task, where it is declared, and not of a call")
    raise TypeError(
        f"{name}= is no option of a call{did_you_mean(name, OF_A_CALL | OPTIONS.keys())} An argument of the task "
        "belongs into kwargs=, and what other code reads of a call is named in JOBS['TASK_OPTIONS']"
    )
