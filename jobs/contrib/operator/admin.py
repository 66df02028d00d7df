"""The operator's pages register themselves."""

from jobs.contrib.operator.pages import dashboard, jobs, workers  # noqa: F401
