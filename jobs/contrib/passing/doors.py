"""The part in the core of what may pass."""

from jobs.doors import Extension


class Passing(Extension):
    instead = {"jobs.execution.backoff.may_pass": "jobs.contrib.passing.passing.may_pass"}
