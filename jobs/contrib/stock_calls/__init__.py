"""Calls of stock tasks that are part of a transaction: a job sends their message after the commit."""

TASKS = ("jobs.send",)
