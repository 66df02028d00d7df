"""An app of Celery's, and the same one of ours."""

from __future__ import annotations

import celery
import pytest
from celery import Celery

from jobs.task import Task
from tests.helpers.parity import make_app


@pytest.fixture(scope="module")
def stock() -> Celery:
    return make_app(celery.Task)


@pytest.fixture(scope="module")
def ours() -> Celery:
    return make_app(Task)
