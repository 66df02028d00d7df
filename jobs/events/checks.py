"""What is wrong with the handlers of events."""

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage

from jobs.checks import OF_TASKS, add_texts, say

add_texts("""
W025 Workers do not import these modules, so their handlers get no event: {modules}.
  -> Write app.autodiscover_tasks(related_name='handlers') beside app.autodiscover_tasks(), or import them in tasks.py.
""")


@OF_TASKS.append
def not_imported(app: Any) -> Iterator[CheckMessage]:
    from jobs.events import declare

    if lost := {*declare.lost_handlers()}:
        yield say("W025", modules=lost)
