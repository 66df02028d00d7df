"""It takes no part in the core, but for its command and its rules."""
