"""Django's backend for PostgreSQL, whose connections belong to simulated processes."""
