"""Calls by name: a message that no `delay()` of ours sent becomes a job, and is acknowledged after that."""
