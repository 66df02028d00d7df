"""Bodies that leave traces of a person."""

from celery import shared_task

from jobs import effect
from jobs.events import event, handler
from tests import tasks


@event("tests.person_joined")
def person_joined(user_id, mail): ...


@shared_task(idempotency_key="joins:{user_id}", tags={"user": "{user_id}"})
def joins(user_id, mail):
    person_joined(user_id=user_id, mail=mail)
    tasks.effect.delay(mail)


@shared_task(atomic=False, on_ambiguous="park", tags={"user": "{user_id}"})
def pays(user_id, how="answered"):
    with effect("pay", user_id) as call:
        if how == "answered":
            call.answered({"of": user_id})
        else:
            raise RuntimeError(how)


@shared_task(tags={"user": "{user_id}"})
def looks_up(user_id, mail):
    return mail


@shared_task(max_retries=0)
def fails():
    raise ValueError("no")


@handler("tests.person_joined")
def greets(user_id, mail):
    tasks.effect.delay(f"greets {mail}")
