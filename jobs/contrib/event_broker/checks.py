"""What is wrong with the broker of events."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from jobs.conf import conf
from jobs.contrib.checks.system import OF_APP, add_texts, say

add_texts("""
E020 JOBS['EVENT_BROKER'] is set, and JOBS['SERVICE'] is not: others know the events, and the queue, by that name.
  -> Set JOBS['SERVICE'] to a name that no other service has: 'billing'.
""")


@OF_APP.append
def nameless(app: Any) -> Iterator[CheckMessage]:
    if conf().EVENT_BROKER is not None and conf().SERVICE is None:
        yield say("E020")
