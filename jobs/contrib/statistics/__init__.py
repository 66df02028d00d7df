"""What ended is counted: for the dashboard, for Prometheus, and for what says that a task fails."""
