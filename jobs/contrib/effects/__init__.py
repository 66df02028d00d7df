"""The ledger of external calls: ``effect()``, ``on_ambiguous=``, and what a person says of a call."""

PUBLIC = {"effect": "ledger"}
