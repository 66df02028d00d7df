"""What is wrong with the schedule."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from jobs.contrib.checks.system import OF_APP, OF_TASKS, add_texts, say

add_texts("""
W023 These entries of the schedule are left out, and nothing runs for them: {entries}.
  -> Put right what each says. Workers run the schedule themselves; with JOBS['SCHEDULES'] = None celery beat does.
W024 What these entries of the schedule call is not there: {entries}.
  -> Put right the name or the arguments. Silence this if the tasks are those of another service.
""")


@OF_APP.append
def left_out(app: Any) -> Iterator[CheckMessage]:
    from jobs.contrib.schedules import entries

    if wrong := entries.gather(app, asks_tables=False)[1]:
        yield say("W023", entries="; ".join(wrong))


@OF_TASKS.append
def gone(app: Any) -> Iterator[CheckMessage]:
    from jobs.contrib.schedules import entries

    if uncallable := [*entries.uncallable(app)]:
        yield say("W024", entries="; ".join(uncallable))
