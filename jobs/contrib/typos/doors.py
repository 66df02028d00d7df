"""The part of the misspelt options in the core: each declaration and each call is checked."""

from jobs.doors import Extension


class Typos(Extension):
    instead = {
        "jobs.calling.calls.check_declaration": "jobs.contrib.typos.options.check_declaration",
        "jobs.calling.calls.check_call": "jobs.contrib.typos.options.check_call",
    }
