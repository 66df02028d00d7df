"""Tags: what a job is about (``user=5``). People find, cancel, retry, delete and count jobs by them."""

PUBLIC = {"tagged": "tags"}
