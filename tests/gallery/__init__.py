"""The classic mistakes, as tasks, each with its corrected twin (``tests/contrib/crashtest``).

The line of a mistake ends with ``# <- here``. A twin has the name of its mistake and ``_mended``.
"""

#: Those that need two at once, and transactions that meet.
MEETING = ("stale_row", "opposite_order")
