"""The promise as queries over live data (``manage.py jobs verify``)."""
