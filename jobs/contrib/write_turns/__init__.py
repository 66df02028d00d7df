"""On SQLite the processes of a worker take turns to write, and leave a gap for callers."""
