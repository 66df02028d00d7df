"""The part of the coloured tables in the core."""

from jobs.doors import Extension


class RichTables(Extension):
    instead = {"jobs.contrib.console.tables.table": "jobs.contrib.rich_tables.tables.table"}
