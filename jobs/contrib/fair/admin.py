"""The keys with the most jobs, on the dashboard and beside the limits."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext

from jobs.conf import conf
from jobs.contrib.fair import keys
from jobs.contrib.fair.keys import NO_KEY
from jobs.contrib.fair.models import KEYED
from jobs.contrib.fair.store import KEYS
from jobs.contrib.fair.waiting import waiting
from jobs.contrib.inspection.counts import MOST, at_least
from jobs.contrib.pages.base import template_of
from jobs.contrib.redaction.display import shown
from jobs.models import Job
from jobs.store import databases

#: How many keys of each queue are shown.
SHOWN = 10


def panel(found: Iterable[str]) -> str:
    """The keys with the most jobs of these queues."""
    queues = []
    for name in found:
        found_keys, weights = waiting(name), keys.weights(name)
        total = sum(weights.get(key, 1) for key in found_keys)
        rows = [
            {
                "key": _shown(name, key),
                "waiting": at_least(count, count >= MOST),
                "share": f"{100 * weights.get(key, 1) / total:.3g} %",
            }
            for key, count in found_keys.most_common(SHOWN)
        ]
        queues.append({"name": name, "rows": rows, "keys": at_least(len(found_keys), len(found_keys) >= KEYS)})
    return template_of("fair.html", __file__).render({"queues": queues}) if queues else ""


def _shown(queue: str, key: str) -> str:
    """A key; ``***`` if the project hides it, or if no job is left to ask the project's function about."""
    if key == NO_KEY:
        return gettext("(none)")
    if conf().REDACT is None:
        return key
    job = databases.first(Job.objects.filter(KEYED, queue=queue, fair_key=key))
    return "***" if job is None else shown(job).text("key", key)
