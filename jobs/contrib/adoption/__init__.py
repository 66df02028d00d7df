"""A copy of a database: its jobs run only when somebody adopts it."""
