"""It has no part in the core: the core's own names of ``jobs.testing`` are in the ``__init__`` of this folder."""
