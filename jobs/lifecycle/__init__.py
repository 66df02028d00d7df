"""The state machine: every transition of a job, and what tells of it."""
