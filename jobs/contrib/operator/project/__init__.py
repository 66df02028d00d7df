"""For projects that come from stock Celery: what they need (``init``), and what changes for them (``audit``)."""
