"""The operator's pages of the admin."""
