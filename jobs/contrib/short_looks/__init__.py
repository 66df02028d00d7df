"""While a transaction stays open for long, looks from the start are slow: most looks begin where the last one ended.

Such a transaction keeps PostgreSQL from vacuuming, so a look from the start steps over the dead index entries of all
jobs that waited since.
"""
