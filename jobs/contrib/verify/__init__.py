"""The promise as queries over live data (``manage.py jobs verify``)."""

#: It needs this extension, because it looks at waiting jobs in the same way.
PART_OF = ("jobs.contrib.operator",)
