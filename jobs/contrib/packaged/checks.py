"""Whether ``JOBS["APPS"]`` does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from jobs.conf import conf, did_you_mean
from jobs.contrib.checks.system import OF_APP, add_texts, say

add_texts("""
E022 JOBS['APPS'] names {name!r}, and its tasks inherit from Celery's class: app.Task was asked for before jobs was
     imported.
  -> Import jobs at the beginning of the settings, or put it first in INSTALLED_APPS.
W026 JOBS['APPS'] names {names}, and the Celery app is called {name!r}{close}
  -> Name it as Celery('...') does.
""")


def named(app: Any) -> Iterator[CheckMessage]:
    names = conf().APPS
    if app.main in names:
        if not getattr(app.Task, "is_transactional", False):
            yield say("E022", name=app.main)
    elif names:
        yield say("W026", names=set(names), name=app.main, close=did_you_mean(str(app.main), names))


OF_APP.append(named)
