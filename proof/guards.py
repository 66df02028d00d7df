"""The same guards in the code: without each one the counterexample of the model plays to its end."""

from __future__ import annotations

from tests.faults.guards import Without

#: By the flags that take them out of the model.
CODE = {
    "NO_TOKEN": Without("jobs.store.base:owned", "", clause=", token=job.token"),
    "NO_STATE": Without("jobs.store.base:owned", "", clause="state=State.RUNNING, "),
    "NO_DEAD_MARK": Without(
        "jobs.store.base:Store.ready",
        "",
        clause="Exists(Node.objects.using(using).filter(pk=claim.node, dead_at=None)),",
    ),
}
