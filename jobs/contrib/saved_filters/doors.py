"""It has no part in the core beside its pages."""
