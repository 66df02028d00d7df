"""What type checkers know of ``@jobs.task``; at run time it is ``shared_task`` (see the end of ``jobs.task``)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from celery.canvas import Signature
from celery.result import AsyncResult
from celery.schedules import BaseSchedule

from jobs.task import Task

P = ParamSpec("P")
R = TypeVar("R")

Key = str | Callable[..., str | None] | None
Moment = datetime.datetime | float | str | None

class CallOptions(TypedDict, total=False):
    """The options of a call; what other code reads goes by ``**{"name": value}``."""

    countdown: float | None
    eta: Moment
    expires: Moment
    queue: Any
    exchange: Any
    routing_key: str | None
    priority: int | None
    time_limit: float | None
    soft_time_limit: float | None
    headers: Mapping[str, Any] | None
    tags: Mapping[str, Any] | None
    ignore_result: bool
    serializer: str | None
    retries: int
    root_id: str | None
    parent_id: str | None
    route_name: str | None
    argsrepr: str | None
    kwargsrepr: str | None
    correlation_id: str | None
    chain: Any
    chord: Any
    group_id: str | None
    group_index: int | None
    stamped_headers: Any
    replaced_task_nesting: int
    reply_to: str | None
    # A job does not travel: these mean nothing to it, and are taken.
    add_to_parent: bool
    compression: str | None
    connection: Any
    router: Any
    retry: bool | None
    retry_policy: Mapping[str, Any] | None

class TaskOptions(TypedDict, total=False):
    """The options of a task; what other code reads (``JOBS["TASK_OPTIONS"]``) goes by ``**{"name": value}``."""

    name: str | None
    base: type[Any]
    atomic: bool
    max_crashes: int | None
    idempotency_key: Key
    unique: Key
    unique_until: Literal["started", "finished"]
    unique_for: float | None
    lock: Key
    lock_ttl: float
    on_ambiguous: Any
    every: float | datetime.timedelta | BaseSchedule | None
    catch_up: bool
    concurrency: int | None
    rate: str | float | None
    limit_key: Key
    fair_key: Key
    tags: Mapping[str, Any] | None
    durable: bool
    deadline: datetime.timedelta | float | None
    grouped: bool
    synchronous_commit: bool
    # Celery's own
    autoretry_for: Sequence[type[BaseException]]
    dont_autoretry_for: Sequence[type[BaseException]]
    throws: Sequence[type[BaseException]]
    max_retries: int | None
    default_retry_delay: float
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    retry_kwargs: Mapping[str, Any]
    queue: Any
    exchange: Any
    exchange_type: str | None
    routing_key: str | None
    priority: int | None
    expires: Moment
    time_limit: float | None
    soft_time_limit: float | None
    rate_limit: str | float | None
    ignore_result: bool
    serializer: str | None
    acks_late: bool
    acks_on_failure: bool
    acks_on_failure_or_timeout: bool
    acks_on_timeout: bool
    reject_on_worker_lost: bool
    retry_on_worker_lost: bool
    store_eager_result: bool
    store_errors_even_if_ignored: bool
    track_started: bool
    send_events: bool
    trail: bool
    typing: bool
    abstract: bool
    argsrepr_maxsize: int | None
    resultrepr_maxsize: int | None
    request_stack: Any
    compression: str | None
    delivery_mode: Any
    immediate: bool
    mandatory: bool
    lazy: bool
    shared: bool
    filter: Any

class ResultOf(AsyncResult, Generic[R]):
    """The result of a call whose body returns ``R``."""

    id: str
    #: Of a task with ``unique=``: a job of the key waited already, and this is it.
    existing: bool

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> R: ...

class TaskOf(Task, Generic[P, R]):
    """A task whose body takes ``P`` and returns ``R``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> ResultOf[R]: ...
    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> ResultOf[R]: ...
    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> ResultOf[R]: ...
    def s(self, *args: Any, **kwargs: Any) -> Signature: ...
    def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature: ...
    def apply_async(  # type: ignore[override]
        self,
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        using: str | None = None,
        **options: Unpack[CallOptions],
    ) -> ResultOf[R]: ...
    async def aapply_async(
        self,
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        using: str | None = None,
        **options: Unpack[CallOptions],
    ) -> ResultOf[R]: ...
    def delay_many(  # type: ignore[override]
        self,
        items: Iterable[tuple[Any, ...] | list[Any] | Mapping[str, Any]],
        using: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[ResultOf[R]]: ...

class AsyncTaskOf(TaskOf[P, R]):
    """A task whose body is an ``async def``: a direct call gives the coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...  # type: ignore[override]

class _Binds(Protocol):
    @overload
    def __call__(self, body: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> AsyncTaskOf[P, R]: ...
    @overload
    def __call__(self, body: Callable[Concatenate[Any, P], R], /) -> TaskOf[P, R]: ...

class _Makes(Protocol):
    @overload
    def __call__(self, body: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTaskOf[P, R]: ...
    @overload
    def __call__(self, body: Callable[P, R], /) -> TaskOf[P, R]: ...

@overload
def task(body: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTaskOf[P, R]: ...
@overload
def task(body: Callable[P, R], /) -> TaskOf[P, R]: ...
@overload
def task(*, bind: Literal[True], **options: Unpack[TaskOptions]) -> _Binds: ...
@overload
def task(*, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> _Makes: ...
