"""Keys of markers, unique jobs and locks: templates over a task's bound arguments, or callables."""

import hashlib
import inspect
from collections.abc import Callable
from string import Formatter
from typing import Any

from jobs.models.values import MAX_KEY, Repr, canonical, decoded


class KeyTemplate:
    """How a task makes a key from a call.

    Parameters:
        option: the task's option, for errors: ``"idempotency_key"``.
        template: text with the names of arguments in braces, ``"welcome:{user_id}"`` (attributes and items may follow a
            name), or a callable that takes the same arguments.
        signature: the signature of the task's own function.
    """

    def __init__(self, option: str, template: str | Callable[..., Any], signature: inspect.Signature) -> None:
        self.option, self.template, self.signature = option, template, signature
        self.names: set[str] = set()
        if callable(template):
            return
        if not isinstance(template, str):
            raise TypeError(f"{option}={template!r} must be a template such as 'welcome:{{user_id}}', or a callable")
        if not template:
            raise ValueError(f"{option} is empty: leave it out, or name the arguments that make two calls the same")
        try:
            fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
        except ValueError as exc:
            raise ValueError(f"{option}={template!r} is no template: {exc}") from exc
        for field in fields:
            # "user.id" and "user[id]" begin with the argument's name.
            name = field.partition(".")[0].partition("[")[0]
            if not name.isidentifier():
                raise ValueError(f"{option}={template!r} must name the arguments: '{{user_id}}', not '{{}}' or '{{0}}'")
            if name not in signature.parameters:
                takes = ", ".join(signature.parameters) or "none"
                raise ValueError(f"{option}={template!r} names {name!r}, which is no argument: it takes {takes}")
            self.names.add(name)

    def of(self, args: Any, kwargs: Any) -> str:
        """The key of one call. Raises as :func:`checked`, and ``TypeError`` if the arguments do not fit the task.

        ``ValueError``: the key needs an argument that cannot be read here, so it is not what the caller gave.
        """
        args, kwargs = decoded(args), decoded(kwargs)
        if callable(self.template):
            self._check_read([*args, *kwargs.values()])
            return checked(self.template(*args, **kwargs), self.option)
        # Bound by name, with defaults: f(1) and f(user_id=1) are the same call.
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self._check_read([bound.arguments[name] for name in self.names])
        return checked(self.template.format_map(bound.arguments), self.option)

    def _check_read(self, values: list[Any]) -> None:
        if any(isinstance(value, Repr) for value in values):
            raise ValueError(f"{self.option}: an argument that it is made of cannot be read here")


def template_of(task: type[Any], option: str) -> KeyTemplate | None:
    """The template in a task's option; None if the option is not set. Raises as :class:`KeyTemplate`."""
    # Celery has made it an attribute of the task: a callable would become a method, with the task as first argument.
    given = inspect.getattr_static(task, option, None)
    given = given.__func__ if isinstance(given, staticmethod) else given
    return None if given is None else KeyTemplate(option, given, task.body_signature)


def fingerprint(task: str, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    """A hash that differs if two calls do: SHA-256, in hex, of the task and its bound arguments as canonical JSON.

    Arguments with their default value are left out, so that a new argument breaks no marker.
    """
    bound = signature.bind(*decoded(args), **decoded(kwargs)).arguments
    given = {name: value for name, value in bound.items() if value != signature.parameters[name].default}
    return hashlib.sha256(canonical([task, given]).encode()).hexdigest()


def checked(key: Any, what: str) -> str:
    """The key, if every store can keep it. ``TypeError``: it is not text; ``ValueError``: it is empty or too long."""
    if not isinstance(key, str):
        raise TypeError(f"{what}: the key must be text, and not {type(key).__name__}")
    if not key or "\0" in key:
        raise ValueError(f"{what}: the key {key!r} is empty or holds a NUL character")
    if len(key) > MAX_KEY:
        cure = f"{MAX_KEY} are kept: use a primary key, or a hash"
        raise ValueError(f"{what}: the key {key[:40]!r}... has {len(key)} characters, and {cure}")
    return key
