"""A call in a transaction of another database than that of its job is not part of that transaction: the log says so."""
