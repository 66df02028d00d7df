"""Celery's remote control knows requests. Jobs are none: what it asks of them is read from the board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.platforms import signals as signal_numbers
from celery.utils.functional import maybe_list
from celery.worker import control

from jobs import companion
from jobs.arguments import parse_uuid
from jobs.board import Occupied, board


def _info(slot: Occupied, hostname: str) -> dict[str, Any]:
    """As ``celery.worker.request.Request.info``."""
    text = board.text(slot)
    return {
        "id": str(slot.job),
        "name": text.get("name", ""),
        "args": text.get("args", ""),
        "kwargs": text.get("kwargs", ""),
        "type": text.get("name", ""),
        "hostname": hostname,
        "time_start": text.get("time"),
        "acknowledged": True,
        "delivery_info": {
            "exchange": "",
            "routing_key": text.get("queue", ""),
            "priority": 0,
            "redelivered": slot.lease > 1,
        },
        "worker_pid": slot.pid,
    }


def running() -> list[Occupied]:
    """What runs here now."""
    return [slot for slot in board.occupied() if slot.has_job]


def _wrap(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a command of Celery's panel by one that knows it as ``stock``."""

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        stock = control.Panel.data[name]
        if getattr(stock, "knows_jobs", False):
            return stock

        def run(state: Any, *args: Any, **kwargs: Any) -> Any:
            return command(stock, state, *args, **kwargs)

        run.knows_jobs = True  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = stock.__name__, stock.__doc__
        control.Panel.data[name] = run
        return run

    return wrap


def install() -> None:
    """In a worker: teach its remote control."""

    @_wrap("active")
    def active(stock: Any, state: Any, **kwargs: Any) -> Any:
        return [*stock(state, **kwargs), *(_info(slot, state.hostname) for slot in running())]

    @_wrap("query_task")
    def query_task(stock: Any, state: Any, ids: Any, **kwargs: Any) -> Any:
        wanted = {str(key) for key in maybe_list(ids)}
        found = {
            str(slot.job): ("active", _info(slot, state.hostname)) for slot in running() if str(slot.job) in wanted
        }
        return {**stock(state, ids, **kwargs), **found}

    @_wrap("revoke")
    def revoke(stock: Any, state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        for key in filter(None, map(parse_uuid, map(str, maybe_list(task_id) or []))):
            number = signal_numbers.signum(signal or control.TERM_SIGNAME) if terminate else None
            companion.tell(revoked=str(key), signal=number)
        return stock(state, task_id, terminate, signal, **kwargs)

    @_wrap("revoke_by_stamped_headers")
    def revoke_by_stamped_headers(
        stock: Any, state: Any, headers: dict[str, Any], terminate: bool = False, signal: Any = None, **kwargs: Any
    ) -> Any:
        number = signal_numbers.signum(signal or control.TERM_SIGNAME) if terminate else None
        companion.tell(stamps={name: maybe_list(value) for name, value in headers.items()}, signal=number)
        return stock(state, headers, terminate, signal, **kwargs)
