"""Checks of Celery's settings, as far as they can be known without the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Warning, register

from jobs import project
from jobs.checks.base import USE_CELERY_SETTINGS, careful, several
from jobs.conf import celery_settings

if TYPE_CHECKING:
    from celery import Celery

#: Celery's settings of how messages are fetched and acknowledged. A job is no message.
ABOUT_MESSAGES = (
    "task_acks_late",
    "task_acks_on_failure_or_timeout",
    "task_acks_on_failure",
    "task_acks_on_timeout",
    "task_reject_on_worker_lost",
    "worker_cancel_long_running_tasks_on_connection_loss",
    "worker_eta_task_limit",
    "worker_prefetch_multiplier",
)


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
    if conf.task_always_eager:
        yield Warning(
            "task_always_eager runs tasks in their caller: no call is a row, and none of the promise holds.",
            hint="Remove it outside of tests.",
            id="jobs.W002",
        )
    yield from _about_outages(app)
    ours = celery_settings()
    idle = [name for name in ABOUT_MESSAGES if conf.value_set_for(name) and conf[name] != ours.get(name)]
    if "visibility_timeout" in (conf.broker_transport_options or {}):
        idle.append("visibility_timeout")
    if idle:
        yield Warning(
            f"These settings mean nothing for jobs, only for tasks that are none: {several(idle)}. A free process "
            "claims a job's row, and its completion acknowledges it.",
            hint="Remove them, or silence this if other tasks need them.",
            id="jobs.W019",
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
            f"A worker ends, and its jobs with it, when its broker is away for long or closes a channel: "
            f"{', '.join(problems)}.",
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
