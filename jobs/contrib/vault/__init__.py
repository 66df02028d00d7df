"""Encryption of arguments that must not be readable in the database: ``JOBS["ENCRYPT"]``."""
