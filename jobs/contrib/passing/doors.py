"""The part of temporary exceptions in the core."""

from jobs.doors import Extension


class Passing(Extension):
    instead = {"jobs.execution.finish.pause": "jobs.contrib.passing.backoff.pause"}
