"""What picks up whatever fell: relay, rescue and prune, siblings of one shape.

Each is a class with ``run_once() -> dict[str, int]`` that says what it did; any number of them may run
side by side, beside every worker and as ``manage.py jobs relay|rescue|prune``.
"""
