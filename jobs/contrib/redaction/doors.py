"""The part of the redaction in the core."""

from jobs.doors import Extension


class Redaction(Extension):
    instead = {
        "jobs.calling.request.seen": "jobs.contrib.redaction.display.seen",
        "jobs.lifecycle.unique.shown_key": "jobs.contrib.redaction.display.shown_key",
    }
