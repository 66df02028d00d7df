"""The promise under faults: real processes and real servers, broken for real, on loopback only.

A scenario is about ten lines that read like its name. It enqueues through the ``ledger``, breaks something with the
words of this package, and ends with ``ledger.check(within=...)``, inside the ``with`` of its workers: every committed
job ended as it should, none lost, no effect twice, nothing stuck, in bounded time. Its docstring names its guard,
and its marks carry it as data (``guards.py``): a file, the text without which the scenario fails, and what stands
there instead when it is taken out::

    @guard("jobs/calling/outbox.py", "ring.ring(self.using, self.queues)", "pass", case="sqlite after_claim")

The text is in its file exactly once (``tests/test_guards.py`` looks after that). Several marks are taken out one by
one; ``also=[(file, old, new)]`` takes more out together, where one guard stands behind another. ``case`` holds
words of the scenario's id, for a guard that only some of its cells need.

    pytest tests/faults                   each scenario in one of its cells (database, broker), rotating
    pytest tests/faults --faults=all      in every cell in which it can occur, also the long ones, and in each manner
    pytest tests/faults --faults=quick    the selection for every push
    pytest tests/faults --faults=bounds   the bounds that users are told, with default clocks; prints their table
    JOBS_TEST_CLOCKS=default pytest ...   with the clocks that users get
    python -m tests.faults.unguarded      take each guard out and see its scenario fail; -k EXPR, --list

The words, one noun per file: ``ledger``, ``broker`` and ``database`` (fixtures), ``Worker``, ``Producer`` and their
``Process``\\ es, ``Proxy`` (a link that can be cut, slow or dead), ``Strike`` (at one row of a claim).
"""
