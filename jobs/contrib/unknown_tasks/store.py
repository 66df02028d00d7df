"""The clock's question: does a job wait for a worker that knows its task?"""

LOOKS = {"parked": "jobs_job WHERE {rare} AND state = 'scheduled' AND run_at > '9000-06-01' ORDER BY run_at"}
