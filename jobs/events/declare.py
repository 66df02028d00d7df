"""``@event`` and ``@handler``."""

from __future__ import annotations

import datetime
import functools
import inspect
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import celery
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

from jobs import extensions
from jobs.events import order, store
from jobs.events.models import EVENT_HEADER
from jobs.events.schema import Schema
from jobs.idempotency.keys import KeyTemplate
from jobs.lifecycle.run import current_job
from jobs.store import databases
from jobs.task import Task

#: A name is words with dots between them, as a topic exchange routes them; a pattern has wildcards.
_NAME = re.compile(r"(?=.{1,200}$)[\w-]+(\.[\w-]+)*", re.ASCII)
PATTERN = re.compile(r"(?=.{1,200}$)([\w-]+|\*|#)(\.([\w-]+|\*|#))*", re.ASCII)

#: Options of a call. A handler cannot have them, because events make its jobs.
_OF_CALLS = ("countdown", "eta", "expires", "unique", "unique_until", "unique_for", "every")

#: The events that this code declares, by name and version.
types: dict[tuple[str, int], EventType] = {}


def event(
    name: str, *, version: int = 1, order_key: str | Callable[..., str] | None = None, using: str | None = None
) -> Callable[[Callable[..., Any]], EventType]:
    """Declare an event. A call of the function tells of the event, in the caller's transaction.

    The annotations are the schema of the event's data. The body may check more, and raise; its result is not kept.

    Parameters:
        name: the name that all services know: words with dots between them, ``"shop.order.paid"``.
        version: raise it when handlers of the version before could not read it any more.
        order_key: template (``"{order_id}"``) or callable. Events of this name and the same key are sent and handled in
            the order of their commits. A transaction that emits one waits for any other that emitted one of the key.
        using: the database; by default that of the jobs.

    Raises:
        TypeError, ValueError: the name or an annotation is not possible.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        says = "a name is ASCII words with dots between them, such as 'shop.order.paid', of 200 characters at the most"
        raise ValueError(f"@event({name!r}): {says}")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < 2**15:
        raise ValueError(f"@event({name!r}): version={version!r} must be a whole number above 0")
    return functools.partial(EventType, name=name, version=version, order_key=order_key, using=using)


class EventType:
    """A declared event.

    Attributes:
        name, version: as they were declared.
        schema: of its data, from the annotations.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, version: int, order_key: Any, using: str | None
    ) -> None:
        functools.update_wrapper(self, function)
        #: Where it is declared.
        self.place = f"{function.__module__}.{function.__qualname__}"
        self.function, self.name, self.version, self.using = function, name, version, using
        self.schema = Schema.of(function, f"the event {name}")
        signature = inspect.signature(function)
        self._order_key = None if order_key is None else KeyTemplate("order_key", order_key, signature)
        known = types.get((name, version), self)
        if known.place != self.place:
            raise ValueError(f"the event {name!r}, version {version}, is declared twice: {known.place}, {self.place}")
        types[name, version] = self

    def __repr__(self) -> str:
        return f"<event {self.name}: {self.place}>"

    def __call__(self, *args: Any, **kwargs: Any) -> uuid.UUID:
        """Tell of the event in the current transaction; returns its id.

        Raises:
            TypeError, ValueError: the data does not fit the annotations.
            Exception: what the body raises.
        """
        values = self.schema.bind(args, kwargs)
        data = self.schema.dump(values)
        self.function(**values)
        key = None if self._order_key is None else self._order_key.of((), values)
        using = databases.job_alias(self.using)
        headers = {name: each for carried in extensions.through("carried") for name, each in carried().items()}
        return store.insert(using, self.name, self.version, data, key, headers)

    async def aemit(self, *args: Any, **kwargs: Any) -> uuid.UUID:
        """The same for async code."""
        return await sync_to_async(self)(*args, **kwargs)


@dataclass(frozen=True)
class Handled:
    """The event that a handler handles.

    Attributes:
        id: the same for all services.
        source: the service that told of it.
        at: when it happened.
        again: the number of the replay that has it handled again; None: it is not handled again.
    """

    id: uuid.UUID
    name: str
    version: int
    source: str
    at: datetime.datetime
    order_key: str | None = None
    again: str | None = None


class Handler(Task):
    """A task that handles events: the arguments of a job are one event's data."""

    abstract = True

    #: Columns of its ``Subscription``, as the code says them.
    subscribes: dict[str, Any] | None = None

    run_over = staticmethod(order.release_next)

    @property
    def event(self) -> Handled | None:
        """The event that is handled; None in a plain call."""
        job = None if self.request.called_directly else current_job()
        about = job and job.headers.get(EVENT_HEADER)
        if not about:
            return None
        key, at = uuid.UUID(about["id"]), datetime.datetime.fromisoformat(about["at"])
        said = (about.get(name) for name in ("order_key", "again"))
        return Handled(key, about["name"], about["version"], about["source"], at, *said)


def handler(
    pattern: str,
    *,
    version: int | None = None,
    ordered: bool = True,
    retries: int | None = None,
    keep_failed: int | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a handler: a task with one job for each event. It takes all options of :class:`jobs.Task`.

    The function gets the fields of the event that it has parameters for, with their annotated types; with ``**kwargs``
    it gets all other fields too. With ``bind=True`` its first argument is the task, and ``self.event`` is the event.

    Parameters:
        pattern: the event's name; ``*`` stands for one word of it, ``#`` for any number.
        version: the only version of the event that it handles; None: all.
        ordered: events of one order key are handled one after the other, even while one is retried.
        retries: how often it is tried again after any exception, with growing pauses. None: as ``JOBS["RETRY"]`` says,
            or as Celery's own options do.
        keep_failed: how many of its failed jobs are kept (the newest), so that a person can retry them; None: all, for
            as long as ``JOBS["RETENTION_FAILED"]`` says.

    Raises:
        TypeError, ValueError: an option or an annotation cannot work.
    """
    if not isinstance(pattern, str) or not PATTERN.fullmatch(pattern):
        raise ValueError(f"@handler({pattern!r}): give an event's name, such as 'shop.order.paid' or 'shop.order.*'")
    if odd := [name for name in _OF_CALLS if name in options]:
        raise TypeError(f"@handler({pattern!r}): {odd[0]}= has no meaning here: each event makes one job, at once")
    if retries is not None:
        options = {"autoretry_for": (Exception,), "retry_backoff": True, **options, "max_retries": retries}
    bounds = {"version": (version, 1, 2**15), "retries": (retries, 0, 2**31), "keep_failed": (keep_failed, 0, 2**31)}
    for name, (value, least, most) in bounds.items():
        if value is not None and (type(value) is not int or not least <= value < most):
            says = f"{name}={value!r} must be a whole number from {least} to {most - 1}, or None"
            raise ValueError(f"@handler({pattern!r}): {says}")
    subscribes = {"pattern": pattern, "version": version, "is_ordered": ordered, "keep_failed": keep_failed}
    base = type("Handler", (Handler,), {"abstract": True, "subscribes": subscribes, "__module__": __name__})

    def declare(function: Callable[..., Any]) -> Any:
        own = 1 if options.get("bind") else 0
        schema = Schema.of(function, is_handler=True, is_bound=bool(own))

        @functools.wraps(function)
        def run(*args: Any, **data: Any) -> Any:
            # An event's values are JSON, and are converted. A plain call (also in another handler) and a job that a
            # person enqueued keep the types that they were given.
            if made.event is not None:
                # A field may be called self.
                data = {name: value for name, value in data.items() if name not in bound}
                args, data = args[:own], schema.load(data, args=args[own:])
            return function(*args, **data)

        if iscoroutinefunction(function):
            markcoroutinefunction(run)
        # A call by hand raises for a wrong argument. An event may have more fields than the handler has parameters.
        signature = inspect.signature(function)
        bound = list(signature.parameters)[:own]
        rest = [] if schema.takes_rest else [inspect.Parameter("other_fields", inspect.Parameter.VAR_KEYWORD)]
        parameters = [*signature.parameters.values(), *rest]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.schema = schema  # type: ignore[attr-defined]
        del run.__wrapped__
        made = celery.shared_task(base=base, **options)(run)
        return made

    return declare
