"""The ledger of external calls: ``effect()``, ``on_ambiguous=``, and what a person says of a call."""

PART_OF = ("jobs.contrib.once", "jobs.contrib.redaction")

PUBLIC = {"effect": "ledger"}
