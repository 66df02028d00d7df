"""The same guards in the code: without each one the counterexample of the model plays to its end."""

from __future__ import annotations

from tests.faults.guards import Without

#: By the flags that take them out of the model; on SQLite.
CODE = {
    "NO_TOKEN": Without("jobs.store.sqlite:_SUCCEED", "(token = %s OR 1 = 1)", clause="token = %s"),
    "NO_STATE": Without("jobs.store.sqlite:_SUCCEED", "1 = 1", clause="state = 'running'"),
    "NO_DEAD_MARK": Without("jobs.store.sqlite:_READY", "", clause=" AND dead_at IS NULL"),
}
