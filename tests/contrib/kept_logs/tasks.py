"""Bodies that log."""

import logging

from celery import shared_task
from celery.utils.log import get_task_logger

logger = logging.getLogger("tests.said")
quiet = logging.getLogger("tests.said.quiet")
of_celery = get_task_logger(__name__)


@shared_task(max_retries=0)
def says(text="hello", fails=False):
    logger.info("%s, it begins", text)
    quiet.debug("a detail")
    of_celery.warning("by Celery's own logger")
    if fails:
        raise ValueError(text)


@shared_task(bind=True)
def again(self):
    logger.info("attempt of %s", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0)


@shared_task(grouped=True)
def grouped(number, fails=False):
    logger.info("number %s", number)
    if fails:
        raise ValueError(number)


@shared_task(bind=True, durable=True)
def durable(self):
    self.step("one", lambda: logger.info("the step"))
    self.sleep(3600)
    logger.info("it goes on")


@shared_task
def much(count, size=10):
    for number in range(count):
        logger.info("%05d %s", number, "x" * size)


@shared_task
def odd():
    logger.info("%s and %s", "one")
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("with a NUL \0, and a traceback")


@shared_task
def copies():
    logging.makeLogRecord({"msg": "a copy"})
    logger.info("and goes on")
