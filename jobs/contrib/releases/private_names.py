"""The private names of Celery, kombu, billiard and Django that ``jobs`` uses: where, and what for.

A minor release may change any of them. At its start a worker checks that each still exists, with the parameters that
we rely on, and does not start otherwise. Two of psycopg's are used if they are there (``contrib/psycopg3``).
"""

import inspect
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from operator import attrgetter
from typing import Any

from jobs import extensions

#: The name, the release that introduced it (before that the code does without it), its first
#: parameters (``-``: it is no function), the file here, and what it is used for. Extensions have such lists, too.
PRIVATE = """
billiard.pool:Worker._make_child_methods self loads     | pool.py: a process waits for its pipe or the wake-up
billiard.pool:Worker.wait_for_job -                     | pool.py: what a process does between two stock tasks
billiard.pool:Worker.inq -                              | pool.py: the pipe of stock tasks
billiard.queues:_SimpleQueue._reader -                  | pool.py: its end to read from
billiard.queues:_SimpleQueue._rlock -                   | pool.py: the lock of who reads, where all share one pipe
billiard.queues:_SimpleQueue._wlock -                   | pool.py: the lock of who writes
billiard.pool:Worker.initargs -                         | pool.py: the app and the worker's name
billiard.pool:Worker.maxtasks -                         | pool.py: worker_max_tasks_per_child counts jobs, too
billiard.pool:Worker.max_memory_per_child -             | pool.py: worker_max_memory_per_child, too
billiard.pool:Worker._shutdown -                        | pool.py: a pool that stops its processes
billiard.pool:Pool._create_worker_process self i        | pool.py: a process that replaces a dead one
billiard.pool:Pool._setup_queues self                   | pool.py: locks that a killed process does not keep
billiard.pool:Pool._inqueue -                           | pool.py: the same
billiard.pool:Pool._outqueue -                          | pool.py: the same
billiard.pool:Pool._worker_active self worker           | pool.py: pool_shrink takes no process that runs a job
billiard.pool:Pool.did_start_ok self                    | pool.py: a process may die before the broker is reached
billiard.pool:pickle_loads -                            | pool.py: a stock task out of the pipe
billiard.common:terminate_handler_fired@4.3 -           | celery_releases.py: a process that was told to end
billiard.common:_should_have_exited -                   | celery_releases.py: the same before
celery.concurrency.asynpool:AsynPool._create_write_handlers self hub | pool.py: which process gets a stock task
celery.concurrency.asynpool:AsynPool.on_poll_start -    | pool.py: the busy processes, before one is chosen
celery.concurrency.asynpool:AsynPool.outbound_buffer -  | pool.py: stock tasks that wait for a process
celery.concurrency.asynpool:AsynPool._busy_workers -    | pool.py: the processes that get no stock task
celery.concurrency.asynpool:AsynPool._all_inqueues -    | pool.py: the pipes of all processes
celery.concurrency.asynpool:AsynPool._fileno_to_inq -   | pool.py: the process behind a pipe
celery.concurrency.asynpool:AsynPool._fileno_to_outq -  | pool.py: the same
celery.concurrency.asynpool:AsynPool._fileno_to_synq -  | pool.py: the same
celery.concurrency.asynpool:AsynPool._registered_with_event_loop - | pool.py: whether there is an event loop
celery.concurrency.asynpool:AsynPool.on_hard_timeout -  | pool.py: the limit of a stock task that has ended long ago
billiard.pool:ApplyResult._worker_pid -                 | pool.py: the process that runs a stock task
celery.concurrency.prefork:TaskPool.Pool -              | pool.py: our pool in place of Celery's
celery.concurrency.prefork:TaskPool.BlockingPool -      | pool.py: the same, for transports without an event loop
celery.fixups.django:DjangoWorkerFixup.on_task_prerun self sender | bootsteps.py: connections are kept between jobs
celery.fixups.django:DjangoWorkerFixup.on_task_postrun self sender | bootsteps.py: the same
celery.worker.consumer:Consumer.add_task_queue self queue | broker.py: processes claim from the same queues
celery.worker.consumer:Consumer.cancel_task_queue self queue | broker.py: the same
celery.app.task:Task._get_app                           | task.py: the app that a task is bound to
celery.app.task:Task._get_exec_options self             | calls.py: the options of a call
celery.app.task:Task._dump_pydantic_arguments@5.7 -     | celery_releases.py: arguments that are pydantic models
celery.app.trace:TraceInfo.handle_error_state self task req | tracer.py: what Celery is told of a failure and a retry
celery.app.trace:TraceInfo.handle_ignore self task req  | tracer.py: the same, of a job that was ended or put off
celery.app.trace:TraceInfo.handle_reject self task req  | tracer.py: the same, of what the body rejects
celery._state:push_current_task -                       | tracer.py: the task that runs
django.db.backends.base.base:BaseDatabaseWrapper._rollback self | databases.py: back to the beginning
django.db.models.query:QuerySet._raw_delete self using  | pruning/prune.py: rows are deleted without being read
django.utils.functional:LazyObject._wrapped -           | conf/__init__.py: which settings there are, without a miss
"""


def entries() -> Iterator[tuple[str, list[str] | None, str]]:
    """Each private name, its first parameters (None: it is no function), and where and what it is used for."""
    lists = [PRIVATE, *(getattr(import_module(name), "PRIVATE", "") for name in extensions.folders())]
    for line in filter(None, "".join(lists).splitlines()):
        left, _, purpose = line.partition("|")
        name, *parameters = left.split()
        name, _, since = name.partition("@")
        if since and _release(version(name.partition(".")[0])) < _release(since):
            continue
        yield name, None if parameters == ["-"] else parameters, purpose.strip()


def _release(text: str) -> list[int]:
    return [int(number) for number in text.split(".")[:2]]


def missing() -> list[str]:
    """The names that are gone, or have other parameters, with what they were used for."""
    return [f"{name} ({purpose})" for name, parameters, purpose in entries() if not _is_there(name, parameters)]


def _is_there(name: str, parameters: list[str] | None) -> bool:
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    try:
        owner: Any = import_module(module)
        if owners:
            owner = attrgetter(".".join(owners))(owner)
        if parameters is None:
            return hasattr(owner, last) or last in _names_in_code(owner)
        taken = inspect.signature(getattr(owner, last)).parameters
        # Other packages, such as Sentry, wrap some of them: a wrapper passes on what it gets.
        passes_on = any(each.kind is each.VAR_POSITIONAL for each in taken.values())
        return passes_on or list(taken)[: len(parameters)] == parameters
    except (ImportError, AttributeError):
        return False


def _names_in_code(owner: Any) -> set[str]:
    """The names that the methods of a class and its bases use: attributes of instances are not declared anywhere."""
    methods = (each for base in inspect.getmro(owner) for each in vars(base).values() if inspect.isfunction(each))
    return {name for method in methods for name in method.__code__.co_names}
