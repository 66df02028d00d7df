"""A copy of a database: its jobs run only after a person has adopted it."""
