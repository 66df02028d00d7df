"""Fair shares: the keys of a queue, customers say, take turns, however many jobs each of them has waiting."""

PART_OF = ("jobs.contrib.redaction",)
