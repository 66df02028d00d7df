"""What people do to jobs by commands and in the admin, for Python: cancel, retry, kill, delete and move them."""

PUBLIC = dict.fromkeys(("cancel", "retry", "kill", "delete", "move"), "changes")
