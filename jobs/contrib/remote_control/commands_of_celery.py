"""Celery's remote control works on requests. Jobs have none here: its answers are read from the worker state.

Each command gets the command of Celery that it replaces.
"""

from typing import Any

from celery.platforms import signals as signal_numbers
from celery.utils.functional import maybe_list
from celery.worker import control

from jobs.contrib.remote_control import revoked
from jobs.lifecycle.worker_state import Occupied, worker_state
from jobs.models.values import as_uuid
from jobs.worker.watchdog import supervisor


def _info(slot: Occupied, hostname: str) -> dict[str, Any]:
    """As ``celery.worker.request.Request.info``."""
    text = worker_state.text(slot)
    about = {name: text.get(name, "") for name in ("name", "args", "kwargs")}
    about |= {"id": str(slot.job), "type": about["name"], "hostname": hostname, "time_start": text.get("time")}
    queue = text.get("queue", "")
    delivery = {"exchange": "", "routing_key": queue, "priority": 0, "redelivered": slot.lease > 1}
    return {**about, "acknowledged": True, "delivery_info": delivery, "worker_pid": slot.pid}


def _infos(state: Any) -> dict[str, dict[str, Any]]:
    """The jobs that run here now, by id."""
    return {str(slot.job): _info(slot, state.hostname) for slot in worker_state.occupied() if slot.has_job}


def _number(terminate: bool, signal: Any) -> int | None:
    return signal_numbers.signum(signal or control.TERM_SIGNAME) if terminate else None


def active(stock: Any, state: Any, **kwargs: Any) -> Any:
    return [*stock(state, **kwargs), *_infos(state).values()]


def query_task(stock: Any, state: Any, ids: Any, **kwargs: Any) -> Any:
    infos = _infos(state)
    found = {key: ("active", infos[id]) for key in maybe_list(ids) if (id := str(as_uuid(key))) in infos}
    return {**stock(state, ids, **kwargs), **found}


def revoke(stock: Any, state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
    number = _number(terminate, signal)
    for key in filter(None, map(as_uuid, maybe_list(task_id) or [])):
        if number is not None:
            supervisor.do(revoked.terminate, str(key), number, is_urgent=True)
        supervisor.do(revoked.cancel, str(key))
    return stock(state, task_id, terminate, signal, **kwargs)


def revoke_by_stamped_headers(
    stock: Any, state: Any, headers: dict[str, Any], terminate: bool = False, signal: Any = None, **kwargs: Any
) -> Any:
    stamps = {name: maybe_list(value) for name, value in headers.items()}
    supervisor.do(revoked.cancel_stamped, stamps, _number(terminate, signal))
    return stock(state, headers, terminate, signal, **kwargs)
