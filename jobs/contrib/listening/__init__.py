"""A worker hears at once of new jobs, and its processes are woken: no job waits for the next poll."""
