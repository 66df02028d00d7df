"""What ended, and was counted, for tests of what reads it."""

from __future__ import annotations

import datetime

from jobs.contrib.statistics.counting import floor
from jobs.contrib.statistics.models import Tally
from jobs.store import databases


def tally(age: datetime.timedelta, count: int, length: int = 60, **more) -> None:
    begin = floor(databases.clock("default") - age, datetime.timedelta(seconds=length))
    values = {"task": "shop.mail", "queue": "mail", "state": "succeeded", "error": "", "ran": {"20": count}, **more}
    Tally.objects.create(length=length, begin=begin, count=count, **values)
