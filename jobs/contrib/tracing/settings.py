"""What it reads of ``settings.JOBS``."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    #: With OpenTelemetry's API installed: the span of a run ``"link"``s to the call, because it may come hours later
    #: and more than once, or is its ``"child"``, in the request's own trace. None: jobs are not traced.
    TRACE: str | None = "link"


#: What the values must be (see ``jobs/extensions.py``).
RULES = {
    "TRACE": ("link|child", "'link' or 'child', or None, not {!r}"),
}
