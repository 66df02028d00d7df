"""One run: claim, body in its transaction, settle."""
