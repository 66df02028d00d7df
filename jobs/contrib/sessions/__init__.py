"""Sessions of PostgreSQL's server: those of dead runs are ended, those that block jobs are seen, lost links noticed."""
