"""The part of the redaction in the core."""

from jobs.doors import Extension


class Redaction(Extension):
    instead = {"jobs.lifecycle.display.Shown": "jobs.contrib.redaction.redacted.Redacted"}
