"""A consumer's test says when a producer's events no longer fit its handlers: ``assert_fits()``."""

PART_OF = ("jobs.events",)
PUBLIC = {"testing.assert_fits": "fits"}
