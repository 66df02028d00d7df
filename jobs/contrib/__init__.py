"""The extensions: each folder has all of one feature. ``jobs/doors.py`` has the doors by which they come in."""
