"""``result_backend = "jobs.backend:Backend"``: an extension reads the results of jobs from their rows."""

from celery.backends.base import DisabledBackend

from jobs import extensions


class NoBackend(DisabledBackend):
    #: A run tells this backend nothing: it reads the rows (``jobs.execution.tracer``).
    reads_rows = True


Backend = extensions.instead(NoBackend)
