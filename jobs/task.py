"""The Task base class: the call side makes a row, the run side hands over to ``jobs.execution.pipeline``."""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from types import ModuleType
from typing import Any, ClassVar

import celery
from asgiref.sync import iscoroutinefunction, sync_to_async
from celery.app.task import Context
from celery.exceptions import Retry
from celery.result import AsyncResult
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from jobs import extensions
from jobs.calling import calls, outbox
from jobs.conf import celery_releases, is_eager, is_stock, problems, sentry, task_options
from jobs.errors import Replaced, UniqueTaken
from jobs.execution import pipeline
from jobs.idempotency.keys import KeyTemplate, template_of
from jobs.lifecycle.run import Run, current_job
from jobs.models import Job
from jobs.models.fields import uuid7
from jobs.models.values import as_uuid, safe_repr

# Celery takes an unknown attribute of a request for a header of the message, and a retry would keep it.
Context.jobs_run, Context.jobs_unsaved = None, (None, None)


class Task(celery.Task):
    """A Celery task whose calls are rows of the caller's transaction.

    Use it for a whole app, ``Celery("proj", task_cls="jobs.task:Task")``, or task by task,
    ``@shared_task(base=jobs.Task)``. All of Celery's own task options work; these come on top:

    atomic (bool, default True):
        The body and the job's completion share one transaction. With False the body manages its own
        transactions, and a crash between them and the completion runs it again. An ``async def`` body has none while it
        awaits: it returns ``self.commit(function, ...)``, which is called in one transaction with the completion.
    max_crashes (int, default ``JOBS["MAX_CRASHES"]``):
        A body that kills its process this often ends ``failed``.
    idempotency_key (template or callable):
        At most one committed run per key, over all jobs: ``"welcome:{user_id}"``, or a callable that takes the
        task's arguments. Later jobs of the key succeed with the result of the first, and without its effects.
    unique (template or callable):
        At most one waiting job per key: another ``delay()`` returns the first one's id, and ``result.existing`` is
        true.
    unique_until (``"started"`` or ``"finished"``, default ``"started"``):
        With ``"finished"`` the key is taken while the job runs, too. What a second caller changed meanwhile may then be
        missed: the first job may have read its data already.
    unique_for (seconds):
        The key is free again after this time, even if the job still waits.

    Extensions have more (``docs/reference/tasks.md``).

    Raises (where it is declared):
        TypeError, ValueError: an option that cannot work; names the cure.
    """

    abstract = True

    #: Marks our tasks for the modules that must not import this one.
    is_transactional = True

    atomic: bool = True
    max_crashes: int | None = None
    idempotency_key: Any = None
    unique: Any = None
    unique_until: str = "started"
    unique_for: float | None = None
    lock: Any = None

    #: Whether its body is a coroutine, which an extension awaits.
    is_async: ClassVar[bool] = False
    #: Whether a synchronous commit with the fence precedes each effect that it has outside of the database.
    is_fenced: ClassVar[bool] = False

    #: Whether the commit of its completion waits for the disk, also if nothing follows it.
    is_synced: ClassVar[bool] = True

    #: What is wrong with the options above.
    declared_wrong: ClassVar[Exception | None] = None

    #: What the decorator was given, beside what Celery adds.
    declared: ClassVar[frozenset[str]] = frozenset()

    #: What its function takes, without the ``self`` of a bound one.
    body_signature: ClassVar[inspect.Signature] = inspect.Signature()

    #: What extensions do with each of its calls, before the row is inserted.
    call_hooks: ClassVar[tuple[Callable[[Any, Job], None], ...]] = ()

    #: Makes plain data of arguments that are pydantic models.
    argument_dumper: ClassVar[Callable[..., Any] | None] = None

    #: The templates above, ready for use.
    key_templates: ClassVar[dict[str, KeyTemplate]] = {}

    #: What a run holds from before the body until it is finished. What taking it raises finishes the run.
    holding: ClassVar[Callable[[Run], AbstractContextManager[Any]] | None] = None

    #: For subclasses: called with the job, outside of its transaction, when a run of it is over.
    run_over: Any = None

    #: The ``__call__`` of a base class of the project, which a run calls in place of ``run``.
    own_call: ClassVar[Callable[..., Any] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Before a base class adds to it.
        cls.declared = frozenset(vars(cls)) if "_decorated" in vars(cls) else frozenset()

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        try:
            if not problems() and not is_stock(cls.name):
                # A message by name is acknowledged after its job has its row.
                cls.acks_late = cls.reject_on_worker_lost = True
                for name, value in task_options(cls.name or "").items():
                    setattr(cls, name, value)
                extensions.instead(calls.check_declaration)(cls, cls.declared)
            cls._decide_limits(app)
            cls._read_options(app)
            if not problems() and not is_stock(cls.name):
                _check_body(inspect.getattr_static(cls, "run"))
        except (TypeError, ValueError) as exc:
            # Celery goes on with a half-made task. Each call of it raises this, because its options would not be kept.
            cls.declared_wrong = type(exc)(f"{cls.name}: {exc}")
            raise cls.declared_wrong from None
        own: Any = cls.__call__
        if own is not Task.__call__ and not hasattr(own, "receives"):
            cls.own_call, cls.__call__ = own, _receiving(own)  # type: ignore[method-assign]

    @classmethod
    def _decide_limits(cls, app: Any) -> None:
        # A task that sets one of its time limits must not collide with the app's default of the other.
        hard, soft = cls.time_limit, cls.soft_time_limit
        if hard and soft and soft > hard:
            if soft == app.conf.task_soft_time_limit:
                cls.soft_time_limit = None
            elif hard == app.conf.task_time_limit:
                cls.time_limit = soft + 60

    @classmethod
    def _read_options(cls, app: Any) -> None:
        run: Any = inspect.getattr_static(cls, "run")
        # As a task has it: a function, or a static, class or partial method.
        cls.body_signature = inspect.signature(run.__get__(object(), cls) if hasattr(run, "__get__") else run)
        found = {name: template_of(cls, name) for name in ("idempotency_key", "unique")}
        cls.key_templates = {name: template for name, template in found.items() if template is not None}
        for declared in extensions.through("declared"):
            declared(cls)
        cls.call_hooks = tuple(called for each in extensions.through("called") if (called := each(cls)) is not None)
        cls.argument_dumper = celery_releases.argument_dumper(cls)
        if "idempotency_key" in cls.key_templates and not cls.atomic:
            raise ValueError(
                "idempotency_key= needs the transaction of the effects, and atomic=False has none: leave atomic=False "
                "out, or call once() in a transaction of the body"
            )
        if cls.unique_until not in ("started", "finished"):
            raise ValueError(f"unique_until={cls.unique_until!r} must be 'started' or 'finished'")
        if cls.unique_for is not None and ("unique" not in cls.key_templates or not cls.unique_for > 0):
            raise ValueError(f"unique_for={cls.unique_for!r} needs unique=, and seconds above 0")
        most = cls.max_crashes
        if most is not None and (type(most) is not int or most < 1):
            raise ValueError(f"max_crashes={most!r} must be a whole number above 0; or leave it to JOBS['MAX_CRASHES']")

    # The call

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> AsyncResult | None:
        """The same as ``delay``, which always waits for the commit; returns the result."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> AsyncResult | None:
        """The same as ``apply_async``, which always waits for the commit; returns the result.

        A task that is left to Celery, or eager, waits for the commit as Celery's own does, and None is returned. The
        same happens if the jobs live in another database than the transaction.
        """
        is_left = is_eager(self._get_app()) or is_stock(self.name)
        alias = None if is_left else outbox.alias_of(kwargs.get("using"))
        if alias is None or (connections["default"].in_atomic_block and not connections[alias].in_atomic_block):
            transaction.on_commit(partial(self.apply_async, *args, **kwargs))
            return None
        return self.apply_async(*args, **kwargs)

    async def adelay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """``delay`` for async code, on the thread that holds the caller's database connection."""
        return await sync_to_async(self.delay)(*args, **kwargs)

    async def aapply_async(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """``apply_async`` for async code."""
        return await sync_to_async(self.apply_async)(*args, **kwargs)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        using: str | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Record the call in the current transaction; workers find it after the commit.

        Takes all options of Celery's; how a message would travel (``producer``, ``retry``, ...) is not kept.

        Parameters:
            using: the database alias, one of ``JOBS["DATABASES"]``; by default what the routers say for ``Job``.

        Raises:
            TypeError: an argument that JSON does not know, arguments that the task does not take, or an unknown option.
            ValueError: an option that cannot be kept, a ``task_id`` that is no UUID, data that is too large.
            UniqueBusy, UniqueTaken: of a task with ``unique=``, see there.
            django.db.IntegrityError: a ``task_id`` that a job already has.
        """
        app, is_left = self._get_app(), is_stock(self.name)
        if not is_left and (options or shadow is not None):
            extensions.instead(calls.check_call)({**options, "shadow": shadow})
        options |= {"task_id": task_id, "link": link, "link_error": link_error, "shadow": shadow}
        if is_left or is_eager(app):
            return super().apply_async(args, kwargs, producer=producer, **options)
        if sentry.MODULE in sys.modules:
            return sentry.traced(Task._record)(self, args, kwargs, using, **options)
        return self._record(args, kwargs, using, **options)

    def _record(self, args: Any, kwargs: Any, using: str | None, **options: Any) -> AsyncResult:
        task_id = options["task_id"]
        run = None if task_id is None else self._run
        # A project's own ``apply_async`` may make more calls of this task meanwhile: the retry has the job's id.
        if run is not None and run.is_retrying and task_id == run.job.task_id:
            # An adopted message may have an exchange that is not known here.
            options.setdefault("queue", run.job.queue)
            call = calls.compose(self, args, kwargs, options)
            # Nothing is sent. The end of the run writes the retry, after the rollback.
            run.planned.append(call)
            return self._result(call, call, options)
        call = calls.compose(self, args, kwargs, options)
        try:
            alias = outbox.alias_of(using)
            if task_id is not None and options.get("replaced_task_nesting"):
                for rename in extensions.through("replacing"):
                    rename(call, alias)
            [job] = outbox.record([call], alias, self._get_app())
        except SynchronousOnlyOperation:
            says = f"{self.name} was called in a running event loop: await its adelay() or aapply_async() there"
            raise SynchronousOnlyOperation(says) from None
        if task_id is not None and job is not call:
            raise UniqueTaken(
                f"the job {job.pk} has the unique key {call.unique_key!r}, and not the id {task_id} that was asked "
                "for: leave task_id= out, and use the result's id"
            )
        return self._result(job, call, options)

    def delay_many(
        self, items: Iterable[tuple[Any, ...] | list[Any] | Mapping[str, Any]], using: str | None = None, **options: Any
    ) -> list[AsyncResult]:
        """Record many calls with one statement; one by one if the class has an ``apply_async`` of its own.

        Parameters:
            items: for each call a tuple (or list) of positional arguments, or a dict of keyword arguments.
            options: as for :meth:`apply_async`, the same for all calls.

        Raises:
            TypeError, ValueError: as :meth:`apply_async`; names the item. Nothing is recorded then.
        """
        if "task_id" in options:
            raise ValueError("task_id= cannot be given to delay_many: each call has its own; use apply_async")
        pairs: list[tuple[Any, Any]] = [({}, item) if isinstance(item, Mapping) else (item, {}) for item in items]
        if is_stock(self.name) or is_eager(self._get_app()):
            return [self.apply_async(args or (), kwargs, **options) for args, kwargs in pairs]
        extensions.instead(calls.check_call)(options)
        if type(self).apply_async is not Task.apply_async:
            # A class of the project adds something to each call (a header with the tenant, say).
            with transaction.atomic(using=outbox.alias_of(using)):
                return [self.apply_async(args or (), kwargs, using=using, **options) for args, kwargs in pairs]
        return sentry.traced(Task._record_many)(self, pairs, using, **options)

    def _record_many(self, pairs: list[tuple[Any, Any]], using: str | None, **options: Any) -> list[AsyncResult]:
        app = self._get_app()
        # A router, and a task's own shadow_name(), may go by the arguments.
        differ = app.amqp.router.routes or type(self).shadow_name is not celery.Task.shadow_name
        common = None if differ else calls.terms(self, (), {}, options)
        made = []
        for index, (args, kwargs) in enumerate(pairs):
            if isinstance(args, str | bytes) or not isinstance(args, tuple | list | dict):
                raise TypeError(f"item {index} must be a tuple (arguments) or a dict (by their names), not {args!r}")
            try:
                made.append(calls.compose(self, tuple(args), kwargs, options, common))
            except (TypeError, ValueError) as exc:
                raise type(exc)(f"item {index}: {exc}") from exc
        recorded = outbox.record(made, outbox.alias_of(using), app)
        return [self._result(job, call, options) for job, call in zip(recorded, made, strict=True)]

    def key_of(self, name: str, job: Job) -> str | None:
        template = self.key_templates.get(name)
        return None if template is None else template.of(job.args, job.kwargs)

    def _result(self, job: Job, call: Job, options: Mapping[str, Any]) -> AsyncResult:
        """
        Parameters:
            job: the job that does the work of the call; it may be a unique job that was there already.
        """
        result = self.AsyncResult(job.task_id)
        result.ignored = job.options.get("ignore_result", self.ignore_result)
        result.existing = job is not call
        if options.get("add_to_parent", True) and (parent := self._get_app().current_worker_task):
            parent.add_trail(result)
        return result

    # The run

    @property
    def _run(self) -> Run | None:
        """The run whose body is calling, if it is a run of this task."""
        run = getattr(self.request_stack.top, "jobs_run", None)
        return run if isinstance(run, Run) else None

    @property
    def job(self) -> Any:
        """The row of the job that runs now, as it was claimed; None outside of any run.

        In a plain call of the task, and in ``apply()``, it is an unsaved job that has an idempotency key.
        """
        request = self.request_stack.top
        if self._run is not None or request is None:
            return None if self._run is None else self._run.job
        if not (request.called_directly or request.is_eager):
            return None
        # The request of a call inside of another one begins as a copy of that.
        made_for, job = request.jobs_unsaved
        if made_for != id(request):
            job = self._unsaved(request)
            request.jobs_unsaved = id(request), job
        return job

    def _unsaved(self, request: Any) -> Job:
        """The job of a call that makes no row. Its arguments are as they were given, and need not be JSON."""
        args, kwargs = list(request.args or ()), dict(request.kwargs or {})
        key, parent = as_uuid(request.id), current_job()
        if key is None and parent is not None:
            # In another job's body: the next run of that job gives the same call the same key.
            key = uuid.uuid5(parent.pk, safe_repr((self.name, args, kwargs)))
        queue = getattr(self, "queue", None) or self._get_app().conf.task_default_queue
        values = {"id": key or uuid7(), "task": self.name, "args": args, "kwargs": kwargs, "queue": str(queue)}
        job = Job.of({**values, "retries": request.retries or 0})
        job.marker_key = self.key_of("idempotency_key", job)
        return job

    @property
    def lock_token(self) -> int | None:
        """The fencing token of the run's ``lock=``, for ``WHERE fence < token``; None without one."""
        return None if self._run is None else self._run.lock_token

    def commit(self, function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """What a body returns to have a function called in the transaction of the job's completion: ``return
        self.commit(save, key, text)``. Its result is the job's.

        For an ``async def`` body, which has no transaction while it awaits. The function's work and the completion are
        one commit. Without a function the commit is the completion alone, and the result is None.

        Raises:
            TypeError: what is given is no function, or an ``async def``. A job also fails with it if its body does not
                return what this method returned: only what is returned is called.
        """
        return extensions.instead(pipeline.commit)(self._run, function, args, kwargs)

    def checkpoint(self) -> None:
        """Ask, in a long body, whether to go on; costs two small queries. Does nothing in a plain call.

        Raises:
            jobs.Cancel: the job was cancelled; do not catch this, and the job ends ``cancelled``.
            LostLease: the job was given to another run (this worker was taken for dead).
        """
        if self._run is not None:
            self._run.checkpoint()

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how far the body is: people see it within a second, though its transaction is open.

        It costs no statement: the worker's supervisor writes it, at most once a second. The same as Celery's
        ``update_state(state="PROGRESS", meta={"current": done, "total": total, ...})``, whatever the result backend is.
        Does nothing in a plain call.

        Parameters:
            done, total: in units of your own; without ``total`` it is not known how much is left.
            text: one line, for people.

        Raises:
            TypeError, ValueError: they are not numbers, or not finite.
        """
        if self._run is not None:
            for progress in extensions.through("progress"):
                progress.say(self._run, done, total, text)

    def retry(self, args: Any = None, kwargs: Any = None, exc: Any = None, **options: Any) -> Any:
        """As Celery's, by hand and for ``autoretry_for``; but what has failed for good ends the job at once."""
        cause: BaseException | None = exc or sys.exc_info()[1]
        if cause is not None and getattr(cause, "ends_job", False):
            raise cause
        if (run := self._run) is None:
            return super().retry(args, kwargs, exc, **options)
        # While ``is_retrying`` is true, ``apply_async`` plans the retry, and sends nothing.
        run.retries_itself, run.is_retrying, planned = True, True, len(run.planned)
        try:
            return super().retry(args, kwargs, exc, **options)
        except Retry as retry:
            if run.is_atomic and len(run.planned) == planned:
                # A task class of the project delays its calls until the commit, and this body will not commit.
                Task.apply_async(self, retry.sig.args, retry.sig.kwargs, **retry.sig.options)
            raise
        finally:
            run.is_retrying = False

    def on_replace(self, sig: Any) -> Any:
        """As Celery's; but what the body did before and the task that replaces it are one commit."""
        if self._run is None:
            return super().on_replace(sig)
        if "idempotency_key" in self.key_templates:
            raise TypeError(f"{self.name} has an idempotency_key, which stands for its own result: call sig.delay()")
        raise Replaced(sig)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_message():
            return extensions.instead(pipeline.receive)(self, self.request_stack.top, args, kwargs)
        with _apart():
            return extensions.instead(pipeline.returned)(None, super().__call__(*args, **kwargs))

    def _is_message(self) -> bool:
        """Whether Celery's worker calls it, for a message by name. A run calls the body itself.

        Everything else is a plain call: from Python, from ``apply()``, from a body that calls itself.
        """
        request = self.request_stack.top
        is_direct = request is None or request.called_directly or request.is_eager
        return not is_direct and request.jobs_run is None and not is_stock(self.name)


def _receiving(own: Callable[..., Any]) -> Callable[..., Any]:
    """The ``__call__`` of a task whose base class has one: a message by name becomes a job before ``own`` is called."""

    @wraps(own)
    def call(self: Task, *args: Any, **kwargs: Any) -> Any:
        if self._is_message():
            return Task.__call__(self, *args, **kwargs)
        with _apart():
            return own(self, *args, **kwargs)

    call.receives = True  # type: ignore[attr-defined]
    return call


def _apart() -> AbstractContextManager[Any]:
    """A savepoint for an errback, which is a plain call: if it breaks, other follow-ups in the transaction survive."""
    within = outbox.following.get()
    return transaction.atomic(using=within) if within else nullcontext()


def _check_body(run: Any) -> None:
    """Refuse a function whose call only makes something to await, or to iterate over: its body would never run."""
    run = getattr(run, "__func__", run)
    if iscoroutinefunction(run):
        raise TypeError(
            "an async def body would never run: make it a def that calls async_to_sync(function)(...) (asgiref.sync)"
        )
    if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        raise TypeError("a body with yield would never run: return a list, or loop over the generator in the body")


class _Decorator(ModuleType):
    """This module, which is the decorator ``jobs.task`` as well: importing it makes it that name of the package."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Declare a transactional task: ``shared_task(base=jobs.Task)``, whose calls type checkers understand.

        ``@task``, or ``@task(unique="summary:{day}", autoretry_for=(OSError,))``: the options of :class:`Task` and all
        of Celery's. With ``bind=True`` the body's first argument is the task, and callers leave it out. The types are
        in ``jobs/typed.pyi``.
        """
        return celery.shared_task(*args, **{"base": Task, **options})


sys.modules[__name__].__class__ = _Decorator
