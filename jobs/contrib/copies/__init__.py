"""Copies of the databases, for runs that may change them: the originals stay as they are."""

PRIVATE = """
django.db.backends.base.base:BaseDatabaseWrapper._nodb_cursor self | copies/store.py: copies of a database
"""
