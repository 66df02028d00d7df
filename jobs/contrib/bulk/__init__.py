"""Many calls at once (``delay_many``, a batch) are one COPY on PostgreSQL, which is several times as fast as INSERT."""

PART_OF = ("jobs.contrib.psycopg3",)
