"""What an operator has: dashboard, statistics, problems, metrics, workers, and work on many jobs at once."""

TASKS = ("jobs.probe",)
