"""How far bodies are, as they report it: ``self.progress()``."""

PART_OF = ("jobs.contrib.inspection", "jobs.contrib.redaction", "jobs.contrib.results")
