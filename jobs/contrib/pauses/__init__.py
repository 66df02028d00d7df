"""A queue is paused, and resumed: by commands, and in the admin."""
