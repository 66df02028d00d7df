"""A savepoint at the very start of a transaction of PostgreSQL is not sent: it would cost two round trips."""

PRIVATE = """
django.db.backends.base.base:BaseDatabaseWrapper._savepoint self sid | savepoints/store.py: the first one is not sent
django.db.backends.base.base:BaseDatabaseWrapper._savepoint_commit self sid | savepoints/store.py: the same
django.db.backends.base.base:BaseDatabaseWrapper._savepoint_rollback self sid | savepoints/store.py: the same
"""
