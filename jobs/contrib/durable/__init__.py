"""Durable tasks: steps that are never done twice, and waits without a process. ``signal()`` lets a task go on."""

PUBLIC = {"signal": "signals", "asignal": "signals", "testing.send_signal": "signals"}
PART_OF = tuple(f"jobs.contrib.{name}" for name in ("passing", "results", "sessions", "stock_calls", "waking"))
TASKS = ("jobs.wake", "jobs.compensate")
