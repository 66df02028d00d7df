"""The part of psycopg2 in the core: a session takes this class only if the connection is not of psycopg 3."""

from jobs.doors import Extension


class Psycopg2(Extension):
    instead = {"jobs.store.sessions.Session": "jobs.contrib.psycopg2.store.PlainSession"}
