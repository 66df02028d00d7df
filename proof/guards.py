"""The same guards in the code: without each one the counterexample of the model plays to its end, and with it not."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from tests.faults.guards import Without


@dataclass(frozen=True)
class Code:
    """What is taken out of ``jobs``, and on which databases the trace plays (Django's names)."""

    parts: tuple[Without, ...]
    on: tuple[str, ...]
    #: A constraint of the table of jobs that goes as well.
    constraint: str = ""
    #: What the model has not either, guard or no guard.
    premise: tuple[Without, ...] = ()
    #: What takes it out, where no trace of the model can.
    by: str = ""

    @property
    def is_guard(self) -> bool:
        return bool(self.parts or self.constraint)


def _code(
    *parts: Without, on: str = "sqlite postgresql mysql", constraint: str = "", premise: Any = (), by: str = ""
) -> Code:
    return Code(parts, tuple(on.split()), constraint, premise, by)


_RESCUE, _RUN = "jobs.maintenance.rescue", "jobs.worker.runner:Runner._run"
_SIGNALS, _HISTORY = "jobs.contrib.durable.signals", "jobs.contrib.durable.history:History"
_TICK = Without(f"{_SIGNALS}:look_again", "False")
#: What a node has written of its own clock with its beat.
_AT = '{uuid.UUID(str(node)): at for node, at in self.side.execute("SELECT node, at FROM jobs_heartbeat")}[node_id]'

#: By the model and the guard's name; a text says why it is not taken out of the code.
OUT: dict[tuple[str, str], Code | str] = {
    ("ownership", "the token in the fence"): _code(
        Without("jobs.store.sqlite:_SUCCEED", "(token = %s OR 1 = 1)", clause="token = %s"),
        Without("jobs.store.postgresql:SUCCEED", "", clause=" AND token = {{4}}"),
        Without("jobs.store.base:owned", "", clause=", token=job.token"),
    ),
    ("ownership", "the state in the fence"): _code(
        Without("jobs.store.sqlite:_SUCCEED", "1 = 1", clause="state = 'running'"),
        Without("jobs.store.postgresql:STILL_RUNNING", "", clause=" AND state || '' = 'running'"),
        Without("jobs.store.base:owned", "", clause="state=State.RUNNING, "),
    ),
    ("ownership", "the lease in the fence, where tokens may be the same"): _code(
        Without("jobs.store.sqlite:_SUCCEED", "(lease = %s OR 1 = 1)", clause="lease = %s"),
        Without("jobs.store.postgresql:SUCCEED", "", clause=" AND lease = {{3}}"),
        Without("jobs.store.base:owned", "", clause=", lease=job.lease"),
        premise=(Without("jobs.lifecycle.claims:new_token", "1"),),
    ),
    ("ownership", "a token of its own for each claim"): _code(Without("jobs.lifecycle.claims:new_token", "1")),
    ("ownership", "the dead mark in the claim"): _code(
        Without("jobs.store.sqlite:_READY", "", clause=" AND dead_at IS NULL"),
        Without("jobs.store.postgresql:READY", "", clause=" AND dead_at IS NULL"),
        Without("jobs.store.base:Store.ready", "", clause=", dead_at=None"),
    ),
    ("ownership", "the renewal before what acts outside"): (
        "no: the player makes the renewal itself; the model `batch` takes it out of the same function"
    ),
    ("ownership", "a synchronous commit where something follows"): _code(
        Without(
            "jobs.execution.pipeline:_attempt",
            "task.is_synced",
            clause="task.is_synced or bool(written or at.connection.run_on_commit)",
        ),
        on="postgresql",
        by="a server that crashes: `tests/contrib/grouped/test_relaxed.py`",
    ),
    ("ownership", "belief in the row after a COMMIT without an answer"): _code(
        Without("jobs.execution.finish:is_committed", "False")
    ),
    ("ownership", "the end of a dead run's session"): _code(
        Without("jobs.contrib.sessions.zombies:end_backends"), on="postgresql mysql"
    ),
    ("rescue", "the row that counts is given back last"): _code(
        Without(
            f"{_RESCUE}:_lose_all",
            'claims.begun(runs); _finish_all(lost, using, "rescued", lose)',
            clause="claims.begun(runs)",
        )
    ),
    ("rescue", "it waits for a row that is locked"): _code(
        Without(f"{_RESCUE}:_lose_all", "and False", clause="and run[0] not in _reported"), on="postgresql mysql"
    ),
    ("rescue", "a renewed row is the one"): _code(
        Without(
            "jobs.lifecycle.claims:begun",
            "[run for run in runs if run is next(each for each in runs if abs(each[2]) == abs(run[2]))]",
        )
    ),
    ("rescue", "a rescuer's fence"): _code(Without(f"{_RESCUE}:_finish_all", "", clause=", lease=lease, token=token")),
    ("judge", "a judge that was away knows nothing"): _code(
        Without(f"{_RESCUE}:Rescue._silent", "False", clause="now - self._last_write - written > conf().DEAD_AFTER / 2")
    ),
    ("judge", "beats prove the time between them, and none before"): _code(
        Without(f"{_RESCUE}:Rescue._silent", "own - self._own", clause="own - self._own - 1")
    ),
    ("judge", "the judge's own clock"): _code(
        Without(f"{_RESCUE}:Rescue._silent", f"now - {_AT}", clause="now - since")
    ),
    # No guard: the code goes this way as it is.
    ("judge", "(the model can fail: somebody who died is declared dead)"): _code(),
    ("unique", "the unique index"): _code(constraint="jobs_job_unique", on="sqlite postgresql"),
    ("unique", "the key is free when the job starts"): _code(
        Without("jobs.calling.calls:compose", '"finished"', clause="task.unique_until")
    ),
    ("unique", "a call waits for another's that is not committed"): (
        "no: the database waits at its index; that the code does not go this way is played on each database"
    ),
    ("unique", "a retry looks whether its key is free"): _code(
        Without(
            "jobs.lifecycle.transitions:wait",
            'values["unique_key"] = None\n    if True:',
            clause='if job.unique_key is None or (job.unique_until == "finished" and not is_new):',
        )
    ),
    ("batch", "the renewal before the begin"): _code(Without(_RUN, "False", clause="not self._renew(job)")),
    ("batch", "worker state first, then the clock"): _code(
        Without(_RUN, "aged", clause="time.monotonic() - claimed_at > OLD"),
        Without(
            _RUN,
            "aged = time.monotonic() - claimed_at > OLD; self._name(run, batch)",
            clause="self._name(run, batch)",
        ),
    ),
    ("batch", "a renewed row has a token of its own"): _code(Without("jobs.lifecycle.claims:renewed", "token")),
    ("batch", "what could not be renewed does not begin"): _code(
        Without(_RUN, "self._renew(job) is None", clause="not self._renew(job)")
    ),
    ("batch", "what has begun is not given back"): _code(
        Without("jobs.lifecycle.transitions:hand_back_claim", "False", clause="begun is not None")
    ),
    ("signal", "the sender looks after its commit"): _code(
        Without(f"{_SIGNALS}:signal", "_look(key, alias); Signal.objects", clause="Signal.objects"),
        Without(f"{_SIGNALS}:signal", call="transaction.on_commit"),
        premise=(_TICK,),
    ),
    ("signal", "the waiter looks after its commit"): _code(
        Without(f"{_HISTORY}._suspend", "if False:", clause="if done and look is not None:"), premise=(_TICK,)
    ),
    ("signal", "the workers look again"): _code(_TICK),
    ("signal", "the fence of a step"): _code(
        Without(f"{_HISTORY}._hold"),
        Without("jobs.contrib.durable.store:_DONE", "0", clause="0 / (SELECT count(*) FROM own)"),
    ),
    ("events", "only whose turn it is"): _code(
        Without(
            "jobs.contrib.event_broker.inbox:_turn",
            "if False:",
            clause="if event.number > max(position.number, missing) + 1:",
        )
    ),
    ("events", "one process hands on at a time"): (
        "no: without it the code meets its unique ids first, which this model does not have"
    ),
    ("limit", "the constraint of slots"): _code(constraint="jobs_job_limit_slot", on="postgresql"),
    ("limit", "a slot is a running row, and nothing that is given back"): _code(
        Without("jobs.contrib.limits.store:_CLAIM", "limit_slot IS", clause="state = 'running' AND limit_slot IS"),
        Without("jobs.contrib.limits.claims:running_in", "limit_slot__isnull=False", clause="WITH_SLOT"),
    ),
    ("limit", "how many run counts, and not which slots"): _code(
        Without("jobs.contrib.limits.store:_CLAIM", "", clause="AND slots > cardinality(taken_slots)"),
        Without("jobs.contrib.limits.claims:_sort", "slot is None", clause="len(taken[key]) >= limit.slots"),
        on="postgresql mysql",
    ),
}


@contextmanager
def taken_out(code: Code, has_guard: bool = False) -> Iterator[None]:
    """The functions, or the texts of SQL, are those without the guard, in this process.

    Parameters:
        has_guard: only its premise is taken out.
    """
    parts = code.premise if has_guard else code.premise + code.parts
    with ExitStack() as stack:
        for name in dict.fromkeys(part.name for part in parts):
            stack.enter_context(_without([part for part in parts if part.name == name]))
        if code.constraint and not has_guard:
            stack.enter_context(_without_constraint(code.constraint))
        yield


@contextmanager
def _without_constraint(name: str) -> Iterator[None]:
    from django.db import connection

    from jobs.models import Job

    constraint = next(each for each in Job._meta.constraints if each.name == name)
    with connection.schema_editor() as editor:
        editor.remove_constraint(Job, constraint)
    try:
        yield
    finally:
        # Some of its rows may break it.
        Job.objects.all()._raw_delete("default")
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, constraint)


@contextmanager
def _without(parts: Sequence[Without]) -> Iterator[None]:
    """Several parts of one function, or one text."""
    name, _, path = parts[0].name.partition(":")
    module = importlib.import_module(name)
    source = parts[0].file().read_text()
    for part in parts:
        source = part.taken_out(source)
    compiled = compile(source, str(module.__file__), "exec")
    found: Any = module
    for each in path.split("."):
        found = inspect.unwrap(inspect.getattr_static(found, each))
        if inspect.isclass(found) or inspect.isfunction(found):
            compiled = next(c for c in compiled.co_consts if isinstance(c, CodeType) and c.co_name == each)
        if inspect.isfunction(found):
            # What is defined in it is part of its code.
            break
    before: dict[str, Any]
    if inspect.isfunction(found):
        function, kept = found, found.__code__
        function.__code__ = compiled
        try:
            yield
        finally:
            function.__code__ = kept
        return
    changed = vars(ModuleType(name)) | {"__package__": module.__package__}
    exec(compiled, changed)
    before = {
        key: value for key, value in vars(module).items() if isinstance(value, str) and changed.get(key, value) != value
    }
    _set(module, {key: changed[key] for key in before})
    try:
        yield
    finally:
        _set(module, before)


def _set(module: ModuleType, texts: dict[str, Any]) -> None:
    vars(module).update(texts)
    for each in vars(module).values():
        # What was made of the texts.
        if hasattr(each, "cache_clear"):
            each.cache_clear()
