"""The part of the short looks in the core, and in the listener."""

from jobs.doors import Extension


class ShortLooks(Extension):
    instead = {
        "jobs.lifecycle.claims.Claimer": "jobs.contrib.short_looks.claims.ShortClaimer",
        "jobs.maintenance.clock.look": "jobs.contrib.short_looks.clock.look",
        "jobs.contrib.listening.listener.has_ready": "jobs.contrib.short_looks.clock.has_ready",
    }
