"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: With OpenTelemetry's API installed: the span of a run ``"link"``s to the call, because it may come hours later
    #: and more than once, or is its ``"child"``, in the request's own trace. None: jobs are not traced.
    TRACE: str | None = "link"


#: Same form as in ``jobs.conf``.
RULES = {
    "TRACE": ("link|child", "'link' or 'child', or None, not {!r}"),
}
