"""The part of replaced files in the core."""

from jobs.doors import Extension


class ReplacedFiles(Extension):
    instead = {
        "jobs.store.sqlite.SQLite": "jobs.contrib.replaced_files.store.Watching",
        "jobs.worker.supervisor.Supervisor": "jobs.contrib.replaced_files.supervisor.Watching",
    }
