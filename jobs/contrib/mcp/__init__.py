"""What agents may ask, by the Model Context Protocol: ``manage.py jobs mcp``. It changes nothing."""
