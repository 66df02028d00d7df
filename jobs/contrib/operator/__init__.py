"""The operator's room: dashboard, statistics, problems, metrics, workers, and operations on many jobs at once."""

TASKS = ("jobs.probe",)
PART_OF = (
    "jobs.contrib.inspection",
    "jobs.contrib.listening",
    "jobs.contrib.operations",
    "jobs.contrib.pruning",
    "jobs.contrib.sessions",
    "jobs.contrib.typos",
)
