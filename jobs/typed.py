"""For annotations: ``TaskOf[[int], str]``. What type checkers know of ``@jobs.task`` is in ``typed.pyi``."""

from typing import Generic, ParamSpec, TypeVar

from celery.result import AsyncResult

from jobs.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskOf(Task, Generic[P, R]):
    abstract = True


class ResultOf(AsyncResult, Generic[R]):
    pass
