"""Django's tasks as jobs: a backend for ``django.tasks`` (Django 6), or for the package ``django-tasks`` before that.

::

    TASKS = {"default": {"BACKEND": "jobs.django_tasks.JobsBackend"}}

An enqueued task is a row of the caller's transaction like every other job, under the dotted path of its function. The
same workers run it, and the same admin shows it. Differences from other backends:

* The body and the job's completion share one transaction. ``JOBS["TASKS"]`` says otherwise for tasks by their paths, as
  for Celery's: ``{"shop.tasks.import_*": {"atomic": False, "lock": "import:{source}"}}``.
* ``OPTIONS`` are options of ``shared_task`` for all tasks that the backend has: ``{"atomic": False}``,
  ``{"time_limit": 60}``, ``{"autoretry_for": [OSError], "retry_backoff": True}``.
* The queue ``"default"`` is that of Celery (``task_default_queue``, or a route of the task); others keep their names.
* Tasks with a higher priority come first, also if the project's broker orders otherwise. A Celery task counts as 0.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import django
from celery import current_app, shared_task
from django.apps import apps
from django.core import checks
from django.utils.module_loading import import_string

from jobs.conf.logs import log
from jobs.django_tasks.doors import HEADER, alias_of

if TYPE_CHECKING or django.VERSION >= (6,):
    from django.tasks import DEFAULT_TASK_QUEUE_NAME, Task, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    from django_tasks import DEFAULT_TASK_QUEUE_NAME, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

if TYPE_CHECKING:
    from jobs.models import Job

_STATUSES = dict.fromkeys(("failed", "cancelled"), TaskResultStatus.FAILED)
_STATUSES |= {"running": TaskResultStatus.RUNNING, "succeeded": TaskResultStatus.SUCCESSFUL}

#: The tasks that are known here, by the paths of their functions, and the options of their Celery tasks.
_known: dict[str, tuple[Task[..., Any], dict[str, Any]]] = {}
#: The tasks that were declared before the models were loaded: ``AppConfig.ready`` makes Celery tasks of them.
_early: list[str] = []


class JobsBackend(BaseTaskBackend):
    """Enqueue tasks as jobs. See the module for what ``OPTIONS`` says."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Refuse a task that cannot run; else make its function known to Celery, and so to the workers."""
        super().validate_task(task)
        path = task.module_path
        if path not in _known:
            _known[path] = task, self.options
            _early.append(path)
            if apps.models_ready:
                make_celery_tasks()
        elif _known[path][1] != self.options:
            raise InvalidTask(
                f"{path} has the OPTIONS of the backend {_known[path][0].backend!r}, and {self.alias!r} has others: "
                "declare it with the backend that it runs on, or give both the same OPTIONS"
            )
        elif _known[path][0].func is not task.func:
            _known[path] = task, self.options

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> Any:
        """Record the job in the caller's transaction; a worker finds it after the commit.

        Raises:
            InvalidTask: the backend cannot run the task.
            TypeError, ValueError: the arguments are not JSON, or the function does not take them.
        """
        from jobs.calling.calls import rank_of

        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(dict(kwargs))
        options: dict[str, Any] = {"eta": task.run_after, "headers": {HEADER: self.alias}}
        if task.queue_name != DEFAULT_TASK_QUEUE_NAME:
            options["queue"] = task.queue_name
        if task.priority:
            # Translate to the order of the project's broker: 9 comes first on RabbitMQ, and 0 on all other brokers.
            options["priority"] = -task.priority if rank_of(current_app, 1) > 0 else task.priority
        made = current_app.tasks[task.module_path].apply_async(args, kwargs, **options)
        result = _result(task, made.id, self.alias, args=args, kwargs=kwargs)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        from jobs.models import Job
        from jobs.models.values import parse_uuid
        from jobs.store import databases

        key = parse_uuid(str(result_id))
        job = None if key is None else databases.first(Job.objects.filter(pk=key))
        if job is None or alias_of(job) is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            return result_of(job)
        except ImportError as exc:
            # Its function is gone.
            raise TaskResultDoesNotExist(result_id) from exc

    def check(self, **kwargs: Any) -> list[Any]:
        found = list(super().check(**kwargs))
        if not apps.is_installed("jobs"):
            hint = "Add 'jobs' to INSTALLED_APPS, and run manage.py migrate."
            found.append(checks.Error(f"TASKS[{self.alias!r}] needs the app jobs, which is not installed.", hint=hint))
        return found


# A function becomes a Celery task


def make_celery_tasks() -> None:
    """Make Celery tasks of Django's tasks, as soon as the models are loaded."""
    from jobs.task import Task as Base

    while _early:
        path = _early.pop(0)
        task, options = _known[path]
        shared_task(**{"base": Base, **options, "name": path, "bind": True})(_body(task))


def _body(task: Task[..., Any]) -> Any:
    path = task.module_path

    @wraps(task.func)
    def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        task = _known[path][0]
        if task.takes_context:
            result = _result(task, self.request.id, task.backend) if self.job is None else result_of(self.job)
            args = (TaskContext(task_result=result), *args)
        return normalize_json(task.call(*args, **kwargs))

    # The arguments that callers have to pass. The first parameter is Celery's own, in place of the context.
    given = inspect.signature(task.func)
    own = inspect.Parameter("celery_task", inspect.Parameter.POSITIONAL_ONLY)
    parameters = list(given.parameters.values())[task.takes_context :]
    run.__signature__ = given.replace(parameters=[own, *parameters])  # type: ignore[attr-defined]
    return run


def find(path: str, alias: str) -> Any:
    """The Celery task of a Django task whose module a worker may not have imported yet; None if there is none.

    Raises:
        ImportError: there is no such function.
    """
    task = import_string(path)
    if path not in _known and isinstance(task, Task):
        # The task was declared with another backend, and enqueued with ``using(backend=...)``.
        replace(task, backend=alias)
    return current_app.tasks.get(path)


# A row becomes a result


def result_of(job: Job) -> TaskResult[..., Any]:
    """Django's result object for an enqueued task.

    Raises:
        ImportError: its function no longer exists.
    """
    from jobs.models.values import decoded

    if job.lease == 1 and job.state == "running":
        # A claim does not read these columns. At the first run their values are known without a query.
        job.__dict__.update({"error": None, "errors": [], "finished_at": None} | job.__dict__)
    elif left := {"error", "errors", "started_at", "finished_at"} & job.get_deferred_fields():
        job.refresh_from_db(fields=left)
    task = _known[job.task][0] if job.task in _known else import_string(job.task)
    alias = str(alias_of(job))
    # The backend may have had another name when the task was enqueued.
    backend = task_backends[alias] if alias in task_backends.settings else task.get_backend()
    queue = DEFAULT_TASK_QUEUE_NAME if job.queue == current_app.conf.task_default_queue else job.queue
    if backend.queues and queue not in backend.queues:
        # A route sent the job to a queue that Django does not know.
        queue = task.queue_name
    task = replace(
        task,
        backend=backend.alias,
        priority=max(TASK_MIN_PRIORITY, min(-job.rank, TASK_MAX_PRIORITY)),
        queue_name=queue,
        run_after=job.run_at if job.options.get("eta") else None,
    )
    status = _STATUSES.get(job.state, TaskResultStatus.READY)
    errors = [each for each in job.errors or () if isinstance(each, dict)]
    if status == TaskResultStatus.FAILED and job.error and job.error not in errors:
        errors.append(job.error)
    # The row says that there were earlier attempts, but not which workers made them.
    attempts = {each["attempt"] for each in errors if each.get("attempt")}
    if job.started_at and status != TaskResultStatus.READY:
        attempts.add(job.lease)
    result = _result(
        task,
        job.task_id,
        backend.alias,
        status=status,
        args=decoded(job.args),
        kwargs=decoded(job.kwargs),
        enqueued_at=job.created_at,
        started_at=job.started_at,
        last_attempted_at=job.started_at,
        finished_at=job.finished_at,
        errors=list(map(_error, errors)),
        worker_ids=[str(job.node_id) if number == job.lease else "" for number in sorted(attempts)],
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", decoded(job.result))
    return result


def _result(task: Task[..., Any], key: str, alias: str, **known: Any) -> TaskResult[..., Any]:
    from jobs.models.fields import time_of

    blank: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "args": [],
        "kwargs": {},
        "enqueued_at": time_of(uuid.UUID(key)),
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return TaskResult(task=task, id=key, backend=alias, **{**blank, **known})


def _error(error: Mapping[str, Any]) -> TaskError:
    from jobs.contrib.results.endings import class_of

    module, name = class_of(error)
    path = f"{module}.{name}" if module else "builtins.RuntimeError"
    return TaskError(exception_class_path=path, traceback=str(error.get("traceback", "")))


# Django's signals


def tell(job: Job, action: str) -> None:
    """Tell the receivers of a start, or of an end. What they raise is logged: the function of a task may be gone."""
    try:
        result = result_of(job)
        theirs = task_started if action == "started" else task_finished
        theirs.send(type(task_backends[result.backend]), task_result=result)
    except Exception:
        log(logging.ERROR, job, "a receiver of a signal of Django's tasks failed", "receiver_failed", exc_info=True)
