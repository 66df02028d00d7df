"""What waits in queues whose keys take turns: for people, and for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext, ngettext

from jobs.conf import conf, loaded_app
from jobs.contrib.fair import keys, store
from jobs.contrib.fair.keys import NO_KEY
from jobs.contrib.fair.models import KEYED
from jobs.contrib.fair.store import KEYS
from jobs.contrib.inspection.counts import MOST, at_least, workers
from jobs.contrib.inspection.times import duration
from jobs.contrib.inspection.view import Reason, View
from jobs.models import Job, State


def waiting(queue: str, most: int = MOST) -> Counter[str]:
    """How many jobs each key of the queue has ready, over all job databases."""
    found: Counter[str] = Counter()
    for alias in conf().DATABASES:
        found.update(dict(store.waiting(alias, queue, most)))
    return found


def status(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """How many keys have ready jobs, for each queue where some do; counted up to :data:`KEYS`."""
    ready = [name for name, queue in found["queues"].items() if queue["ready"]]
    keyed = {name for alias in conf().DATABASES for name in store.keyed(alias, ready)}
    counts = {name: len(waiting(name, 1)) for name in ready if name in keyed}
    return {name: {"keys": count, "capped": count >= KEYS} for name, count in counts.items() if count}


def in_turns() -> list[str]:
    """The queues, of the settings and of the workers, in which keys take turns at the moment."""
    names = sorted({*conf().QUEUES, *(name for node in workers() for name in node.queues)})
    return sorted({name for alias in conf().DATABASES for name in store.keyed(alias, names)})


def metrics() -> Iterator[tuple[str, str, list[str], Any]]:
    says = f"Keys that have jobs ready, of a queue where keys take turns; {KEYS} are counted."
    yield "jobs_fair_keys", says, ["queue_name"], _numbers


def _numbers(found: Mapping[str, Any]) -> list[tuple[list[str], int]]:
    return [([name], each["keys"]) for name, each in found["fair"].items()]


def waits(view: View) -> Iterator[Reason]:
    """The job waits because its key takes turns with other keys."""
    job: Any = view.job
    weights = keys.weights(job.queue)
    if job.state != State.READY or job.held or job.fair_key is None:
        return
    waiting = dict(store.waiting(view.using, job.queue, MOST))
    if set(waiting) <= {job.fair_key} and job.queue not in keys.queues(loaded_app()):
        # No other key has jobs waiting: the order of the queue holds.
        return
    mine = Job.objects.using(view.using).filter(KEYED, queue=job.queue, fair_key=job.fair_key)
    ahead, own = view.ahead_of(mine.order_by("fair_key", "rank", "run_at", "pk")), weights.get(job.fair_key, 1)
    rounds = ahead // own + 1
    others = {key: count for key, count in waiting.items() if key != job.fair_key}
    before = ahead + sum(min(count, rounds * weights.get(key, 1)) for key, count in others.items())
    count = waiting.get(job.fair_key, 0)
    words = {
        "since": duration(max(0.0, view.since(job.run_at))),
        "key": gettext("(none)") if job.fair_key == NO_KEY else view.seen.text("key", job.fair_key),
        "waiting": at_least(count, count >= MOST),
        "own": at_least(ahead, ahead >= MOST),
        "before": before,
        "others": at_least(len(others), len(waiting) >= KEYS),
    }
    says = ngettext(
        "It has been ready for %(since)s. Its key %(key)s has %(waiting)s waiting (before it: %(own)s), and takes "
        "turns with %(others)s other key: about %(before)s jobs start before it.",
        "It has been ready for %(since)s. Its key %(key)s has %(waiting)s waiting (before it: %(own)s), and takes "
        "turns with %(others)s other keys: about %(before)s jobs start before it.",
        len(others),
    )
    cure = gettext("If that takes too long: more workers, or more processes (--concurrency).") if before else ""
    evidence = {"waiting": count, "ahead": ahead, "others": len(others), "before": before, "weight": own}
    yield Reason("fair_turn", says, cure, words, key=words["key"], **evidence)
