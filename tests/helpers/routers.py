"""Database routers as projects have them."""


class Primary:
    """It writes to one database, whatever a row came from, as the router of Django's documentation does."""

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, *rows, **hints):
        return True


class Replica(Primary):
    """It reads the tables of jobs from a replica, which lags behind: it has nothing yet."""

    def db_for_read(self, model, **hints):
        return "second" if model._meta.app_label.startswith("jobs") else None
