"""Jobs in MariaDB, or MySQL 8."""

PRIVATE = """
django.db.models.constraints:UniqueConstraint._get_condition_sql self model schema_editor | mysql/store.py: itself
"""
