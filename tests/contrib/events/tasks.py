"""Events and handlers that the tests of events use; workers import them as well."""

from __future__ import annotations

import datetime
import os

from jobs import Snooze
from jobs.events import event, handler
from tests.models import Effect


@event("test.thing.made", version=1)
def thing_made(name: str, at: datetime.datetime | None = None) -> None:
    if not name:
        raise ValueError("a thing has a name")


@event("test.thing.moved", order_key="{name}")
def thing_moved(name: str, number: int) -> None:
    pass


@event("test.thing.lost", version=2)
def thing_lost(name: str) -> None:
    pass


@handler("test.thing.made", bind=True)
def note_made(self, name: str, at: datetime.datetime | None = None) -> None:
    Effect.objects.create(key=f"made:{name}", note=f"{self.event.name} {type(at).__name__}")


@handler("test.thing.*", retries=3, default_retry_delay=0.1)
def note_all(**fields: object) -> None:
    Effect.objects.create(key=f"all:{fields['name']}:{fields.get('number', '')}")


@handler("test.thing.moved", retries=5, default_retry_delay=0, autoretry_for=(OSError,), retry_backoff=False, bind=True)
def note_moved(self, name: str, number: int) -> None:
    if name.startswith("flaky") and self.request.retries < number % 3:
        raise OSError("not yet")
    Effect.objects.create(key=f"moved:{name}:{number}")


#: Another version of this code handles another version of the event.
@handler("test.thing.lost", version=int(os.environ.get("TEST_LOST_VERSION", "1")))
def note_lost(name: str) -> None:
    raise Snooze(1.0)
