"""It has no part in the core: other extensions call ``waking.py``."""
