"""The threads of a supervisor share one connection to each database: a worker has as few as it can."""
