"""One run: the body in its transaction, the completion, the finish."""
