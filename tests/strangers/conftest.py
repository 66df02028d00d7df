from pathlib import Path

import pytest
from django.conf import settings


def pytest_ignore_collect(collection_path, config):
    """Only where the packages are: tests/acceptance/test_strangers.py runs these files there."""
    return True if settings.SETTINGS_MODULE != "tests.strangers.settings" else None


@pytest.fixture
def mails(tmp_path, monkeypatch):
    """Where the mails of a worker started now go: call it for their texts."""
    directory = tmp_path / "mails"
    directory.mkdir()
    monkeypatch.setenv("STRANGERS_MAILS", str(directory))

    def texts():
        return sorted(text for path in Path(directory).glob("*.log") for text in path.read_text().split("-" * 79)[:-1])

    return texts
