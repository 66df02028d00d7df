"""Arguments that nobody may read in the database: ``JOBS["ENCRYPT"]``."""
