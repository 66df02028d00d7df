"""Measure one part of a figure for one peer, in a process of its own: ``python -m benchmarks.cell FIGURE OPTIONS``.

The environment says which peer, and where its servers are. The result is a line of JSON.
"""

from __future__ import annotations

import json
import sys


def main(name: str, options: str) -> None:
    from benchmarks.figures import FIGURES
    from benchmarks.scene import prepared

    with prepared() as scene:
        if name == "migrate":
            from django.core.management import call_command

            call_command("migrate", run_syncdb=True, verbosity=0)
            scene.peer.install()
            return
        found = FIGURES[name].measure(scene, **json.loads(options))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
