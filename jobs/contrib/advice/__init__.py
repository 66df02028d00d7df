"""Advice: system checks that warn of settings that are allowed, and seldom meant."""

PART_OF = ("jobs.contrib.passing", "jobs.contrib.pruning")
