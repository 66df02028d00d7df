"""The supervisor's part of ``revoke``: it can query databases, and knows which process runs which job."""

from __future__ import annotations

import uuid
from typing import Any

from jobs.conf import conf
from jobs.lifecycle import transitions
from jobs.lifecycle.worker_state import REVOKED, worker_state
from jobs.models import LIVE, Job
from jobs.worker.supervisor import here

_TEXT = "revoked at the worker"


def terminate(key: str, number: int) -> None:
    """``terminate=True``: end the process that runs the job, and with it the job."""
    for slot in worker_state.occupied():
        if slot.has_job and str(slot.job) == key:
            here().end_or_ask(slot, REVOKED, _TEXT, number)


def cancel(key: str) -> None:
    for alias in conf().DATABASES:
        _cancel(uuid.UUID(key), alias)


def cancel_stamped(stamps: dict[str, list[Any]], number: int | None) -> None:
    """
    Parameters:
        number: the signal for the processes of running jobs; None: running jobs end by themselves.
    """
    for alias in conf().DATABASES:
        for key in _stamped(alias, stamps):
            if _cancel(key, alias) and number is not None:
                terminate(str(key), number)


def _cancel(key: uuid.UUID, using: str) -> bool:
    # Race: a run may go back to waiting between the first two.
    given = key, using, REVOKED, _TEXT
    return transitions.cancel(*given) or transitions.ask_to_end(*given) or transitions.cancel(*given)


def _stamped(using: str, stamps: dict[str, list[Any]]) -> list[uuid.UUID]:
    """The jobs that have not ended and have one of the stamps."""

    def each(given: dict[str, Any]) -> set[tuple[str, str]]:
        lists = {name: values if isinstance(values, list) else [values] for name, values in given.items()}
        return {(name, str(value)) for name, values in lists.items() for value in values if value is not None}

    live = Job.objects.using(using).filter(state__in=LIVE, options__has_key="stamps")
    found = live.values_list("pk", "options").iterator()
    return [key for key, options in found if options and each(options["stamps"]) & each(stamps)]
