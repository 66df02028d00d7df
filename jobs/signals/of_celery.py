"""Celery's own signals of a call: ``before_task_publish`` at the call, ``after_task_publish`` after the commit.

They get what a message would hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery, signals

from jobs import extensions
from jobs.calling import request
from jobs.models import Job


def announce(job: Job, given: Mapping[str, Any], app: Celery) -> dict[str, Any]:
    """At the call. Returns the caller's headers, with what receivers added or changed."""
    kept = job.options
    made = request.headers_of(job, app, kept)
    headers = {**made, **given}
    properties = {"correlation_id": job.task_id, "reply_to": kept.get("reply_to", ""), "priority": job.priority}
    with extensions.around("publishing"):
        signals.before_task_publish.send(
            sender=job.task,
            body=(job.args, job.kwargs, request.embedded(kept)),
            exchange=kept.get("exchange", ""),
            routing_key=kept.get("routing_key", job.queue),
            declare=[],
            headers=headers,
            properties=properties,
            retry_policy=dict(app.conf.task_publish_retry_policy),
        )
    return {name: value for name, value in headers.items() if name not in made or made[name] != value}


def tell(job: Job, app: Celery) -> None:
    """After the commit."""
    options = job.options
    with extensions.around("publishing"):
        signals.after_task_publish.send(
            sender=job.task,
            body=(job.args, job.kwargs, request.embedded(options)),
            headers={**request.headers_of(job, app, options), **job.headers},
            exchange=options.get("exchange", ""),
            routing_key=options.get("routing_key", job.queue),
        )
