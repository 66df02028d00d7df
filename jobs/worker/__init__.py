"""What ``celery worker`` gets from us."""
