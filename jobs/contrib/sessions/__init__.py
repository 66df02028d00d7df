"""Sessions of PostgreSQL's server: those of dead runs are ended, and people see who is in their way."""
