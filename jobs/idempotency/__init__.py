"""Work that is done only once: keys and markers."""
