"""The part of the adoption in the core."""

from jobs.doors import Extension


class Adoption(Extension):
    instead = {"jobs.store.identity.Identity": "jobs.contrib.adoption.identity.Marked"}
