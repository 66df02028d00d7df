"""A whole cluster in one process, on a simulated clock, over one real PostgreSQL: ``python -m simulation --help``.

The code of ``jobs`` is the real one: supervisors with their threads, processes that claim and run, callers. Each
process and each thread is a greenlet. Time stands still while one of them works, and passes when all of them wait. So
an hour costs only what its statements cost, and a seed repeats a run to the last row.

``world`` has the clock, processes, threads and pipes; ``backend`` the connections; ``node`` a worker; ``faults`` what
happens to it; ``cluster`` puts them together, and counts; ``report`` writes it down.

What is not simulated: Celery's own main process and its broker; the time that a statement takes. Between two
waits a process is not interrupted, except at the sync points.
"""
