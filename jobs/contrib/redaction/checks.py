"""What is wrong with the redaction."""

from collections.abc import Iterator

from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from jobs.conf import conf
from jobs.contrib.checks.system import OF_SETTINGS, add_texts, say

add_texts("""
E013 JOBS['REDACT'] cannot be imported: {exc}
  -> Name a function redact(task, name, value) by its dotted path. Until then all values are hidden.
""")


@OF_SETTINGS.append
def check_redaction() -> Iterator[CheckMessage]:
    # problems() does not say it: that runs when the function's module cannot be imported yet.
    try:
        if (redact := conf().REDACT) is not None:
            import_string(redact)
    except Exception as exc:
        yield say("E013", exc=exc)
