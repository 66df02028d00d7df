"""One holder at a time, across processes and machines: `lock()`, and a task's `lock=`."""

PUBLIC = {"lock": "locks"}

PART_OF = ("jobs.contrib.once", "jobs.contrib.waking")
