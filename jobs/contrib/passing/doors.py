"""The part of temporary exceptions in the core."""

from jobs.doors import Extension


class Passing(Extension):
    instead = {"jobs.execution.backoff.may_pass": "jobs.contrib.passing.passing.may_pass"}
