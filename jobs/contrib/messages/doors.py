"""The part of the messages in the core: what Celery's worker calls for one of them."""

from jobs.doors import Extension


class Messages(Extension):
    instead = {"jobs.execution.pipeline.receive": "jobs.contrib.messages.receiving.receive"}
