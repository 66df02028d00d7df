"""What must be true of chords: a count that is off is seen, and a chord that goes on is not."""

from __future__ import annotations

import pytest
from celery import chord
from django.db.models import F

from jobs.contrib.verify.verify import verify
from jobs.models import Chord, ChordPart, Job
from tests import tasks
from tests.helpers.harness import claim, run
from tests.helpers.verifying import broken, found

pytestmark = pytest.mark.django_db(transaction=True)

P = tasks.passes


@pytest.mark.parametrize("off", [{"done": 0}, {"size": 3}, {"failed": 1}, {"done": F("done") + 1}])
def test_a_chord_whose_body_nobody_would_call_is_seen(node, off):
    chord([P.si("a"), tasks.fails.si("b")], P.s()).delay()
    assert broken(verify(patient=False)) == {}
    run(claim(Job.objects.get(task=P.name).pk))
    assert broken(verify(patient=False)) == {}
    Chord.objects.update(**off)
    report = verify(patient=False)
    assert broken(report) == {"chord-counts": 1}
    assert found(report)["chord-counts"].examples == [Chord.objects.get().pk]
    assert broken(verify(everything=True, patient=False)) == {"chord-counts": 1}


def test_a_chord_that_lost_its_parts_is_seen(node):
    chord([P.si("a"), P.si("b")], P.s()).delay()
    ChordPart.objects.all().delete()
    for everything in (False, True):
        assert broken(verify(everything=everything, patient=False)) == {"chord-counts": 1}
