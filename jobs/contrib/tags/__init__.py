"""Tags: what a job is about (``user=5``), by which people find, cancel, retry, delete and count jobs."""

PUBLIC = {"tagged": "tags"}
