"""The markers in the admin: a list, and a page of each, where it may be deleted."""
