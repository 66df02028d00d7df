"""What people may not see of arguments, results and errors: ``JOBS["REDACT"]``."""
