"""Durable tasks: steps that are never done twice, and waits without a process. ``signal()`` lets a task go on."""

#: What a job waits for with its children is a batch.
PART_OF = "jobs.contrib.batches"

PUBLIC = {"signal": "signals", "asignal": "signals", "testing.send_signal": "signals"}
