"""`once()`: a part of a transaction that is committed once per key, whoever asks for it."""

PUBLIC = {"once": "once"}
