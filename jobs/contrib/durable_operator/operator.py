"""What the operator's room shows of durable tasks."""

from jobs.contrib.durable_operator.rows import metrics

__all__ = ["metrics"]
