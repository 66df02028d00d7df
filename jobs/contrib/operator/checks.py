"""What a project keeps from stock Celery although jobs do not need it, or need it in another way."""

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import celery
from django.core.checks import CheckMessage

from jobs.conf import celery_settings, conf, problems, task_options
from jobs.contrib.checks.system import OF_APP, OF_TASKS, add_texts, say

add_texts("""
W019 These settings mean nothing for jobs, only for tasks that are none: {names}. A free process claims a job's row, and
     its completion acknowledges it.
  -> Remove them, or silence this if other tasks need them.
W020 The task {task} {why}, and needs the option {option} of ours, which its package cannot know of.
  -> Set JOBS = {{'TASKS': {{{pattern!r}: {{{option}}}}}}}.
W021 These tasks stay stock Celery, although the app's task_cls is jobs.Task, because their base class is not: {tasks}.
  -> Let the base class inherit from jobs.Task, or name the tasks in JOBS['EXCLUDE'] if that is what you want.
""")

#: Tasks of other packages that need an option of ours: the pattern for JOBS["TASKS"], the option, its value, and why.
NEEDS = {
    "post_office.tasks.send_queued_mail": (
        "post_office.*",
        "atomic",
        False,
        "closes its connection in its body (in a transaction that ends it failed, and its mails are sent again)",
    ),
}

#: Celery's settings of how messages are fetched and acknowledged. A job is no message.
ABOUT_MESSAGES = """
task_acks_late task_acks_on_failure_or_timeout task_acks_on_failure task_acks_on_timeout task_reject_on_worker_lost
worker_cancel_long_running_tasks_on_connection_loss worker_eta_task_limit worker_prefetch_multiplier
""".split()


@OF_APP.append
def needless(app: Any) -> Iterator[CheckMessage]:
    """Settings of how messages are fetched and acknowledged."""
    ours = celery_settings()
    idle = {name for name in ABOUT_MESSAGES if app.conf.value_set_for(name) and app.conf[name] != ours.get(name)}
    if "visibility_timeout" in (app.conf.broker_transport_options or {}):
        idle.add("visibility_timeout")
    if idle:
        yield say("W019", names=idle)


@OF_APP.append
def of_packages(app: Any) -> Iterator[CheckMessage]:
    return neglected() if getattr(app.Task, "is_transactional", False) else iter(())


def neglected() -> Iterator[CheckMessage]:
    """The tasks of installed packages that lack an option that they need."""
    for task, (pattern, option, value, why) in NEEDS.items():
        module, _, name = task.rpartition(".")
        # Some packages make their tasks only if one of their settings says so.
        is_there = hasattr(sys.modules.get(module), name)
        if is_there and not is_excluded(task) and task_options(task).get(option) != value:
            yield say("W020", task=task, why=why, option=f"{option!r}: {value!r}", pattern=pattern)


def is_excluded(task: str) -> bool:
    return not problems() and any(fnmatchcase(task, pattern) for pattern in conf().EXCLUDE)


@OF_TASKS.append
def foreign(app: Any) -> Iterator[CheckMessage]:
    found = {name for name, task in app.tasks.items() if has_foreign_base(task) and not is_excluded(name)}
    if found and getattr(app.Task, "is_transactional", False):
        yield say("W021", tasks=found)


def has_foreign_base(task: Any) -> bool:
    """Whether the task's class is neither ours nor Celery's own."""
    if getattr(task, "is_transactional", False):
        return False
    # Celery makes a class for a task that is declared as a function: its base counts.
    bases = type(task).__mro__[1 if "__wrapped__" in vars(type(task)) else 0 :]
    return any(issubclass(each, celery.Task) and not each.__module__.startswith("celery.") for each in bases)
