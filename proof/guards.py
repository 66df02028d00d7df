"""The same guards in the code: without each one the counterexample of the model plays to its end, and with it not."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from tests.faults.guards import Without


@dataclass(frozen=True)
class Code:
    """What is taken out of ``jobs``, and on which databases the trace plays (Django's names)."""

    parts: tuple[Without, ...]
    on: tuple[str, ...] = ("sqlite", "postgresql", "mysql")


def _code(*parts: Without, on: str = "sqlite postgresql mysql") -> Code:
    return Code(parts, tuple(on.split()))


_RESCUE = "jobs.maintenance.rescue"
#: What a node has written of its own clock with its beat.
_AT = 'dict(self.side.execute("SELECT node, at FROM jobs_heartbeat"))[node_id.hex]'

#: By the model and the guard's name; a text says why it is not taken out of the code.
OUT: dict[tuple[str, str], Code | str] = {
    ("ownership", "the token in the fence"): _code(
        Without("jobs.store.sqlite:_SUCCEED", "(token = %s OR 1 = 1)", clause="token = %s"), on="sqlite"
    ),
    ("ownership", "the state in the fence"): _code(
        Without("jobs.store.sqlite:_SUCCEED", "1 = 1", clause="state = 'running'"), on="sqlite"
    ),
    ("ownership", "the dead mark in the claim"): _code(
        Without("jobs.store.sqlite:_READY", "", clause=" AND dead_at IS NULL"), on="sqlite"
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
        Without(f"{_RESCUE}:Rescue._silent", f"now - {_AT}", clause="now - since"), on="sqlite mysql"
    ),
    # No guard: the code goes this way as it is.
    ("judge", "(the model can fail: somebody who died is declared dead)"): _code(),
}


@contextmanager
def taken_out(code: Code) -> Iterator[None]:
    """The functions, or the texts of SQL, are those without the guard, in this process."""
    with ExitStack() as stack:
        for part in code.parts:
            stack.enter_context(_without(part))
        yield


@contextmanager
def _without(part: Without) -> Iterator[None]:
    name, _, path = part.name.partition(":")
    module = importlib.import_module(name)
    compiled = compile(part.taken_out(part.file().read_text()), str(module.__file__), "exec")
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
