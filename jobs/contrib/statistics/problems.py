"""The tasks that failed in the last hour, those with the most failures first."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.utils.translation import gettext

from jobs.contrib.statistics.counting import HOUR
from jobs.contrib.statistics.tallies import Row, counts
from jobs.inspection.remarks import NAMED, Remark, ago, remark
from jobs.models import State

EVERY_TIME = 5  #: So many failures one after the other, and no success: the task fails every time.


def of(minutes: Sequence[Row], nodes: list[dict[str, Any]]) -> Iterator[Remark]:
    """What needs attention, by the tallies of the last hour and the workers."""
    failed = [row for row in minutes if row.state == State.FAILED]
    every = counts(minutes, "task")
    for task, number in counts(failed, "task").most_common(NAMED):
        failures = [row for row in failed if row.task == task]
        succeeded = (row.begin for row in minutes if row.task == task and row.state == State.SUCCEEDED)
        worked = max(succeeded, default=None)
        latest = [row for row in failures if worked is None or row.begin > worked]
        words = {"task": task, "number": number, "all": every[task]}
        words["error"] = counts(failures, "error").most_common(1)[0][0] or "?"
        kind, since = "failed", ago(min(row.begin for row in latest or failures))
        says = gettext("%(task)s: %(number)s of %(all)s failed this hour, mostly with %(error)s")
        means = gettext("They stay until somebody runs them again.")
        if sum(row.count for row in latest) >= EVERY_TIME:
            kind, number = "failing", 1
            says = gettext("%(task)s: fails every time, %(number)s of %(all)s this hour, mostly with %(error)s")
            means = gettext("It has not succeeded once since then. Look at what was deployed or changed at that time.")
            # The worker that started last between its last success and its first failure: tallies are by the minute.
            least, most = since - 60, HOUR.total_seconds() if worked is None else ago(worked)
            if new := [node for node in nodes if least <= node["age_seconds"] <= most][-1:]:
                since = new[0]["age_seconds"]
                words |= {"worker": new[0]["hostname"], "version": new[0]["version"] or "?"}
                says = gettext(
                    "%(task)s: fails every time since the deploy of version %(version)s, %(number)s of %(all)s this "
                    "hour, mostly with %(error)s"
                )
                means = gettext("It has not succeeded once since %(worker)s was started. Roll back, or mend the task.")
        yield remark(kind, says % words, means % words, number=number, since=since, about=task)
