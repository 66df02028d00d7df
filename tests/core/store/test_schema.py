"""What is done after Django has made the tables."""

import pytest
from django.apps import apps
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection, transaction

pytestmark = pytest.mark.django_db


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB commits at each change of a schema")
@pytest.mark.parametrize("about", [{}, {"plan": [], "apps": apps}], ids=["flush", "migrate"])
def test_a_database_that_needs_nothing_more_may_be_in_a_transaction(about):
    """SQLite's schema editor refuses one, and a project's tests may flush, or migrate, in theirs."""
    with transaction.atomic():
        emit_post_migrate_signal(0, False, "default", **about)
