"""The part of the broker of events in the core."""

from collections.abc import Collection
from threading import Event

from jobs.doors import Attempt, Extension, Thread


def send(stopping: Event, attempt: Attempt) -> None:
    from jobs.contrib.event_broker.publisher import Publisher

    Publisher().run(stopping)


def receive(stopping: Event, attempt: Attempt) -> None:
    from jobs.conf import loaded_app
    from jobs.contrib.event_broker.receiver import Receiver

    if (app := loaded_app()) is None:
        stopping.wait()
    else:
        Receiver(app).run(stopping)


class EventBroker(Extension):
    def threads(self) -> list[Thread]:
        from jobs.conf import conf

        return [] if conf().EVENT_BROKER is None else [send, receive]

    def heard(self, told: Collection[str] | None) -> None:
        from jobs.conf import conf

        if told is None and conf().EVENT_BROKER is not None:
            # The worker may be about to end: the publisher must not wait until its next look.
            from jobs.contrib.event_broker.publisher import numbered

            numbered.set()
