"""How far bodies are, as they report it: ``self.progress()``; and where the next run goes on: ``save_cursor()``."""

PART_OF = ("jobs.contrib.inspection", "jobs.contrib.redaction", "jobs.contrib.results")
