"""Answers agents' questions, by the Model Context Protocol: ``manage.py jobs mcp``. It changes nothing."""
