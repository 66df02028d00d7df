"""Sessions of PostgreSQL's server: those of dead runs are ended, and people see which sessions block their jobs."""
