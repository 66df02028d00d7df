"""The subcommands of ``manage.py jobs``, by what people want: look, change, keep going."""
