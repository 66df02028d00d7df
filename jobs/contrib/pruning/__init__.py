"""Jobs that ended long ago are deleted, and with them what is kept for them; by one worker, beside its work."""
