"""The broker when there is none: ``broker_url = "jobs://"`` is the database."""
