"""What ``manage.py demo`` shows: customers sign up while workers, deliveries and transactions fail."""
