"""One run: the body in its transaction, and its end: the completion, or what else came of it."""
