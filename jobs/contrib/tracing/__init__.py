"""Traces across the queue, with OpenTelemetry: a call, and each run of its job."""
