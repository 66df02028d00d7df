"""Durable tasks: steps that are never done twice, and waits without a process. ``signal()`` lets a task go on."""

PUBLIC = {"signal": "signals", "asignal": "signals", "testing.send_signal": "signals"}
PART_OF = ("jobs.contrib.passing", "jobs.contrib.results", "jobs.contrib.stock_calls", "jobs.contrib.waking")
TASKS = ("jobs.wake", "jobs.compensate")
