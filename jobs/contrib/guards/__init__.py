"""Guards: rows are locked, and read as they are then, until the transaction ends."""

PUBLIC = {"guard": "guards"}
