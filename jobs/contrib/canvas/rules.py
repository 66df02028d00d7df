"""What must be true of chords: their counts are those of their parts."""

from itertools import groupby

from django.utils.translation import gettext_lazy as _

from jobs.contrib.canvas.models import ChordPart
from jobs.contrib.verify.rules import Rows, Rule, Search

READ = 5000  #: How many parts are read, unless all are asked for.


@Rule("chord-counts", _("a chord has counted each part that ended, once, and is gone when its body was called"))
def miscounted(search: Search) -> Rows:
    """One statement, because a part and its chord change in one commit."""
    parts = ChordPart.objects.using(search.using).order_by("chord", "task_id")
    rows = list(
        parts.values_list("chord", "chord__size", "chord__done", "chord__failed", "ok")[
            : None if search.view.everything else READ
        ]
    )
    if not search.view.everything and len(rows) == READ:
        # The last chord may have more parts than were read.
        rows = [row for row in rows if row[0] != rows[-1][0]]
    found = []
    for (key, size, *counted), group in groupby(rows, lambda row: row[:4]):
        ended = [ok for *_, ok in group]
        if [size, *counted] != [len(ended), ended.count(True), ended.count(False)] or counted == [size, 0]:
            found.append((key,))
    return [found]
