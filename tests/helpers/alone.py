"""A database is copied only while nobody else is connected to it."""

import gc

import pytest
from django.db import connection

from tests.conftest import end_broker_connections
from tests.helpers.servers import wait_for

#: The sessions of threads that tests before have left behind.
OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture(autouse=True)
def is_alone(request):
    if connection.vendor != "postgresql" or "django_db" not in request.keywords:
        return
    request.getfixturevalue("transactional_db")

    def are_gone() -> bool:
        # Of the broker that is the database.
        end_broker_connections()
        gc.collect()
        with connection.cursor() as cursor:
            cursor.execute(OTHERS)
            return not cursor.fetchall()

    wait_for(are_gone, 60, "the sessions of other tests have ended")
