"""Jobs that wait for something else than a time, and what wakes them. Other extensions say what it is."""

PART_OF = ("jobs.contrib.listening",)
