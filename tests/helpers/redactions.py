"""What a project hides, as ``JOBS[\"REDACT\"]``."""


def hide_secrets(task: str, name: str, value):
    if name == "note" and value == "bad":
        raise ValueError(value)
    return "***" if name in ("note", "result", "rest") else value


def hide_answers(task: str, name: str, value):
    assert task == "tests.tasks.effect"
    return "***" if name == "answer" else value


def hide_errors_and_keys(task: str, name: str, value):
    return "***" if name in ("error", "key", "progress") else value
