"""What a person may do to jobs, and which jobs are meant: the commands, the admin and Python use it."""
