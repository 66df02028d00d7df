"""What type checkers know of ``@jobs.task``; at run time it is ``shared_task`` (see the end of ``jobs.task``)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from celery.canvas import Signature
from celery.result import AsyncResult
from celery.schedules import BaseSchedule

from jobs.task import Task

P = ParamSpec("P")
R = TypeVar("R")

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
    def apply_async(
        self,
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        using: str | None = None,
        *,
        countdown: float | None = None,
        eta: datetime.datetime | float | str | None = None,
        expires: datetime.datetime | float | str | None = None,
        queue: Any = None,
        priority: int | None = None,
        time_limit: float | None = None,
        soft_time_limit: float | None = None,
        headers: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        ignore_result: bool = ...,
        **options: Any,
    ) -> ResultOf[R]: ...
    async def aapply_async(
        self,
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime.datetime | float | str | None = None,
        expires: datetime.datetime | float | str | None = None,
        queue: Any = None,
        priority: int | None = None,
        tags: Mapping[str, Any] | None = None,
        using: str | None = None,
        **options: Any,
    ) -> ResultOf[R]: ...
    def delay_many(
        self, items: Iterable[tuple[Any, ...] | list[Any] | Mapping[str, Any]], using: str | None = None, **options: Any
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

Key = str | Callable[..., str | None] | None

@overload
def task(body: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTaskOf[P, R]: ...
@overload
def task(body: Callable[P, R], /) -> TaskOf[P, R]: ...
@overload
def task(
    *,
    bind: Literal[True],
    atomic: bool = True,
    max_crashes: int | None = None,
    idempotency_key: Key = None,
    unique: Key = None,
    unique_until: Literal["started", "finished"] = "started",
    unique_for: float | None = None,
    lock: Key = None,
    lock_ttl: float = 30.0,
    on_ambiguous: Any = "retry",
    every: float | datetime.timedelta | BaseSchedule | None = None,
    catch_up: bool = True,
    concurrency: int | None = None,
    rate: str | float | None = None,
    limit_key: Key = None,
    tags: Mapping[str, Any] | None = None,
    **options: Any,
) -> _Binds: ...
@overload
def task(
    *,
    bind: Literal[False] = False,
    atomic: bool = True,
    max_crashes: int | None = None,
    idempotency_key: Key = None,
    unique: Key = None,
    unique_until: Literal["started", "finished"] = "started",
    unique_for: float | None = None,
    lock: Key = None,
    lock_ttl: float = 30.0,
    on_ambiguous: Any = "retry",
    every: float | datetime.timedelta | BaseSchedule | None = None,
    catch_up: bool = True,
    concurrency: int | None = None,
    rate: str | float | None = None,
    limit_key: Key = None,
    tags: Mapping[str, Any] | None = None,
    **options: Any,
) -> _Makes: ...
