"""The promise as queries over live data (``manage.py jobs verify``)."""

#: It looks at what waits as that does.
PART_OF = "jobs.contrib.operator"
