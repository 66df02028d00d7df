"""Many small jobs a second: a commit that need not be on the disk yet, and several bodies in one transaction."""
