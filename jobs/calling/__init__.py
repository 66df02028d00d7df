"""From a call to its row, and from the row to what a body sees."""
