"""Queries about jobs and workers, for pages, commands and rules."""
