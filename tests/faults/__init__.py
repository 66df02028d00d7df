"""The promise under faults: real processes and real servers, broken for real, on loopback only.

A scenario is about ten lines that read like its name. It enqueues through the ``ledger``, breaks something with the
words of this package, and ends with ``ledger.check(within=...)``, inside the ``with`` of its workers: every committed
job ended as it should, none lost, no effect twice, nothing stuck, in bounded time. Its docstring says what guards it,
and its marks name that as data (``guards.py``): a function of ``jobs``, and what it returns when it is taken out::

    @guard("jobs.maintenance.rescue:rescue_all", case="sqlite after_claim")
    @guard(Without("jobs.execution.pipeline:_is_conflict", "False"))

Where no whole function is the guard, it is one call or one clause in it (``call=``, ``clause=``). Several marks are
taken out one by one. Several parts of one mark are taken out together: each stands behind the one before. ``case``
holds words of the scenario's id, for a guard that only some of its cells need.
``tests/acceptance/test_fault_guards.py`` looks after the names.

    pytest tests/faults                   each scenario in one of its cells (database, broker), rotating
    pytest tests/faults --faults=all      in every cell in which it can occur, also the long ones, and in each manner
    pytest tests/faults --faults=quick    the selection for every push
    pytest tests/faults --faults=bounds   the bounds that users are told, with default clocks; prints their table
    pytest tests/faults --faults=soak     hours with all features and faults from a seed, in which nothing grows
    JOBS_TEST_CLOCKS=default pytest ...   with the clocks that users get
    python -m tests.faults.unguarded      take each guard out and see its scenario fail; -k EXPR, --list

The words, one noun per file: ``ledger``, ``broker`` and ``database`` (fixtures), ``Worker``, ``Producer`` and their
``Process``\\ es, ``Proxy`` (a link that can be cut, slow or dead), ``Strike`` (at one row of a claim).
"""
