"""The subcommands of ``manage.py jobs``, grouped by purpose: look at jobs, change them, maintain."""
