"""Events between services."""
