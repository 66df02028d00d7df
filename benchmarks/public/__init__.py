"""An adapter for the public benchmark of PostgreSQL job queues, and what runs its scenes without Docker."""
