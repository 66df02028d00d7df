"""Filters of the list of jobs that people keep under a name, for themselves or for all."""
