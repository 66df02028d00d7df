"""The promise under faults: real processes and real servers, broken for real, on loopback only.

A scenario is about ten lines that read like its name. It enqueues through the ``ledger``, breaks something with the
words of this package, and ends with ``ledger.check(within=...)``, inside the ``with`` of its workers: every committed
job ended as it should, none lost, no effect twice, nothing stuck, in bounded time. Its docstring names its guard:
what to take out of ``jobs`` to see it fail.

    pytest tests/faults                   each scenario in one of its cells (database, broker), rotating
    pytest tests/faults --faults=all      in every cell in which it can occur
    pytest tests/faults --faults=quick    the selection for every push
    JOBS_TEST_CLOCKS=default pytest ...   with the clocks that users get

The words, one noun per file: ``ledger``, ``broker`` and ``database`` (fixtures), ``Worker``, ``Producer`` and their
``Process``\\ es, ``Proxy`` (a link that can be cut, slow or dead), ``messages`` (repeat, reorder).
"""
