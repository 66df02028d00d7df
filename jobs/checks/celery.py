"""Checks of Celery's settings, as far as they can be known without the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning, register

from jobs import project
from jobs.checks.base import USE_CELERY_SETTINGS, careful, several

if TYPE_CHECKING:
    from celery import Celery


@register("jobs")
@careful
def check_project_app(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> Iterator[CheckMessage]:
    app = project.celery_app()
    if app is None:
        yield Warning(
            "The project's Celery app is not loaded in this process: calls would know none of its settings and routes.",
            hint="Import it in the __init__.py of the package that holds the settings: from proj.celery import app.",
            id="jobs.W016",
        )
    else:
        yield from check_celery(app)


@careful
def check_celery(app: Celery) -> Iterator[CheckMessage]:
    """What the app's settings alone tell; its tasks need not be loaded."""
    conf = app.conf
    if conf.task_protocol != 2:
        yield Error(
            f"Celery's setting task_protocol is {conf.task_protocol!r}: every call of a job would raise.",
            hint="Remove it; 2 is the default.",
            id="jobs.E008",
        )
    if not {"json", "application/json"} & set(conf.accept_content or ()):
        yield Error(
            f"Celery's setting accept_content is {list(conf.accept_content or ())}: no worker would take the message "
            "of a job, which is JSON.",
            hint="Add 'json' to accept_content.",
            id="jobs.E009",
        )
    if conf.task_always_eager:
        yield Warning(
            "task_always_eager runs tasks in their caller: no call is a row, and none of the promise holds.",
            hint="Remove it outside of tests.",
            id="jobs.W002",
        )
    if not conf.task_acks_late:
        yield Warning(
            "task_acks_late is off: a job that a killed worker had taken and not begun is not delivered again; it runs "
            "when its grace (JOBS['GRACE']) is over.",
            hint=USE_CELERY_SETTINGS.format(name="task_acks_late", value=True),
            id="jobs.W005",
        )
    yield from _about_acknowledging(conf)
    if conf.worker_cancel_long_running_tasks_on_connection_loss:
        yield Warning(
            "worker_cancel_long_running_tasks_on_connection_loss kills all bodies that run whenever the connection to "
            "the broker blinks; each of their jobs runs again from its beginning.",
            hint=USE_CELERY_SETTINGS.format(name="worker_cancel_long_running_tasks_on_connection_loss", value=False),
            id="jobs.W007",
        )
    yield from _about_outages(app)
    if driver(app) == "amqp" and not (conf.broker_transport_options or {}).get("confirm_publish"):
        yield Warning(
            "RabbitMQ does not confirm what Celery itself publishes (links, chains, tasks that are no jobs): in "
            "trouble it takes messages and loses them. The messages of jobs are always confirmed.",
            hint="Set broker_transport_options = {'confirm_publish': True, 'read_timeout': 10, 'write_timeout': 10}.",
            id="jobs.W009",
        )


def _about_acknowledging(conf: Any) -> Iterator[CheckMessage]:
    either = conf.task_acks_on_failure_or_timeout
    odd = {
        "task_acks_on_failure": either if conf.task_acks_on_failure is None else conf.task_acks_on_failure,
        "task_acks_on_timeout": either if conf.task_acks_on_timeout is None else conf.task_acks_on_timeout,
    }
    names = [f"{name} = False" for name, value in odd.items() if value is False]
    if conf.task_reject_on_worker_lost:
        names.append("task_reject_on_worker_lost = True")
    if names:
        yield Warning(
            f"{several(names)}: about jobs their rows decide. The message of a job that failed is rejected in vain, "
            "and a task that is no job and hits its time limit or kills its process is delivered again, for ever.",
            hint="Remove these settings, or see celery_settings() in jobs/conf.py.",
            id="jobs.W006",
        )


def _about_outages(app: Celery) -> Iterator[CheckMessage]:
    conf = app.conf
    problems = []
    if conf.broker_connection_max_retries is not None:
        problems.append(f"broker_connection_max_retries = {conf.broker_connection_max_retries!r}")
    if not conf.broker_connection_retry:
        problems.append("broker_connection_retry = False")
    if conf.broker_connection_retry_on_startup is False:
        problems.append("broker_connection_retry_on_startup = False")
    if driver(app) == "amqp" and not conf.broker_channel_error_retry:
        problems.append("broker_channel_error_retry = False")
    if problems:
        yield Warning(
            f"A worker ends when its broker is away for long, or closes a channel: {', '.join(problems)}.",
            hint=USE_CELERY_SETTINGS.format(name="broker_connection_max_retries", value=None)
            + " broker_connection_retry, broker_connection_retry_on_startup, broker_channel_error_retry = True.",
            id="jobs.W008",
        )


def driver(app: Celery) -> str | None:
    """What kind of broker the app has; None if its client library is not installed, which Celery says itself."""
    try:
        return str(app.connection_for_write().transport.driver_type)
    except ImportError:
        return None
