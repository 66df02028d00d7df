import pytest

from tests.harness import Worker, effects, wait_ended
from tests.tasks import effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.core]


def test_smoke():
    with Worker() as w:
        r = effect.delay("a")
        try:
            wait_ended(r.id, timeout=10)
        finally:
            print(w.text())
    assert effects() == {"a": 1}
