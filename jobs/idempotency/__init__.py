"""Work that is done only once, or by one process at a time: keys, markers and locks."""
