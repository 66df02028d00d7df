"""Why a job is where it is: the reasons in the order in which they count, with evidence and cure."""

PART_OF = ("jobs.contrib.redaction", "jobs.contrib.sessions")
