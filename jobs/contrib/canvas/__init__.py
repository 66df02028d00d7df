"""What follows a job: links, chains, groups, chords, errbacks, and tasks that replace others."""

PART_OF = ("jobs.contrib.results", "jobs.contrib.stock_calls")

TASKS = ("jobs.ended", "jobs.same")

PRIVATE = """
celery.backends.base:Backend._fail_chain@5.7 self chain exc | followups.py: a chain that was ended
"""
