"""Find effects that no rollback undoes, where they happen inside of a transaction: ``JOBS["ISOLATION"]``."""

PUBLIC = {"testing.isolation": "isolation"}
