"""The part of the kept lines in the core. Where no lines are kept, none of its code runs in a job's way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.signals import setting_changed

from jobs.doors import Extension


def _set_up(*, setting: str = "JOBS", **kwargs: Any) -> None:
    from jobs.conf import conf, problems
    from jobs.contrib.kept_logs import lines

    if setting == "JOBS":
        lines.listen(not problems() and bool(conf().KEEP_LOGS))


class KeptLogs(Extension):
    def ready(self) -> None:
        _set_up()
        # Tests send this signal.
        setting_changed.connect(_set_up, dispatch_uid="jobs.contrib.kept_logs")

    def deleting(self, jobs: Any, using: str, of: Any) -> None:
        from jobs.contrib.kept_logs.models import LogLines

        LogLines.objects.using(using).filter(of("job"))._raw_delete(using)

    def parts(self, page: str, request: Any, about: Any) -> Mapping[str, str]:
        from jobs.contrib.kept_logs import page as its

        return its.job_page(request, about) if page == "job" else {}
