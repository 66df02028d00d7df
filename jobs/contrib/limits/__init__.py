"""Limits: how many jobs of a task or a queue run at once, or start in a time, over all workers."""
