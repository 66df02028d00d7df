"""What must be true of chords: their counts are those of their parts."""

from itertools import groupby

from django.db.models import Exists, OuterRef, Subquery
from django.utils.translation import gettext_lazy as _

from jobs.contrib.canvas.models import Chord, ChordPart
from jobs.contrib.verify.rules import Rows, Rule, Search

#: Unless all are asked for: how many chords are looked at, and how many parts they have together at the most.
CHORDS, PARTS = 500, 5000


@Rule("chord-counts", _("a chord has counted each part that ended, once, and is gone when its body was called"))
def miscounted(search: Search) -> Rows:
    own = Chord.objects.filter(pk=OuterRef("chord_id"))
    counts = [Subquery(own.values(name)) for name in ("size", "done", "failed")]
    parts = ChordPart.objects.using(search.using).order_by("chord_id", "task_id")
    lost = Chord.objects.using(search.using).filter(~Exists(parts.filter(chord=OuterRef("pk"))), size__gt=0)
    if not search.view.everything:
        keys, left = [], PARTS
        for key, size in Chord.objects.using(search.using).order_by("pk").values_list("pk", "size")[:CHORDS]:
            if size <= left:
                keys.append(key)
                left -= size
        parts, lost = parts.filter(chord_id__in=keys), lost.filter(pk__in=keys)
    # Parts and counts in one statement, because they change in one commit.
    rows = parts.values_list("chord_id", *counts, "ok")
    found = [*lost.values_list("pk")]
    for (key, size, *counted), group in groupby(rows, lambda row: row[:4]):
        ended = [ok for *_, ok in group]
        if [size, *counted] != [len(ended), ended.count(True), ended.count(False)] or counted == [size, 0]:
            found.append((key,))
    return [found]
