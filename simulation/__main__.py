"""A whole cluster on a simulated clock, over one real PostgreSQL that this starts. A seed repeats a run exactly.

It prints what was lost or done twice, how long a rescue took, and what the cluster asks of the database. It ends with 1
if the promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulation import report

ROOT = Path(__file__).resolve().parent.parent

#: What ``--faults`` takes; ``faults.RATES`` has how often each happens.
KINDS = {
    "kills": ["kill_child", "kill_supervisor", "kill_main", "power", "at_point"],
    "pauses": ["pause_child", "pause_supervisor", "pause_node"],
    "partitions": ["cut", "lost_answer"],
    "clocks": ["jump"],
    "deploys": ["deploy"],
    "failovers": ["failover"],
}


def main() -> int:
    options = _parser().parse_args()
    words = options.faults.split(",")
    kinds = [kind for word, part in KINDS.items() for kind in part if "all" in words or word in words]
    names = "processes", "hours", "seed", "rate", "length", "limit", "often", "until_idle"
    plan = {name: getattr(options, name) for name in names}
    found = []
    for nodes in options.nodes:
        found.append(run({**plan, "nodes": nodes, "kinds": kinds}, is_quiet=not options.verbose))
        if not options.json:
            print(report.lines(found[-1]), flush=True)  # noqa: T201
    if options.json:
        print(json.dumps(found, indent=1))  # noqa: T201
    elif len(found) > 1:
        print(report.table(found))  # noqa: T201
    if options.svg is not None:
        options.svg.write_text(report.chart(found))
    return max(report.is_broken(each) for each in found)


def run(plan: dict[str, Any], is_quiet: bool = True) -> dict[str, Any]:
    """One cluster, in a process of its own, in which sets have one order."""
    command = [sys.executable, "-m", "simulation.cell", json.dumps(plan)]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    log = subprocess.DEVNULL if is_quiet else None
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    numbers = lambda text: [int(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--nodes", type=numbers, default=[10], help="how many workers; several: 10,50,100,200")
    parser.add_argument("--processes", type=int, default=8, help="of each worker (8)")
    parser.add_argument("--hours", type=float, default=0.1, help="of the simulated clock (0.1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.5, help="jobs in a second for each worker (0.5)")
    parser.add_argument("--length", type=float, default=2.0, help="seconds of a body, on average (2)")
    parser.add_argument("--limit", type=int, default=4, help="how many of every twelfth job run at once (4)")
    parser.add_argument("--faults", default="all", help=f"all, none, or some of {','.join(KINDS)} (all)")
    parser.add_argument("--often", type=float, default=1.0, help="how many times as often as usual they happen (1)")
    parser.add_argument(
        "--no-end", dest="until_idle", action="store_false", help="do not wait until all jobs have ended: only count"
    )
    parser.add_argument("--json", action="store_true", help="print all figures, and the most expensive statements")
    parser.add_argument("--svg", type=Path, help="draw how statements and CPU grow with the nodes, into this file")
    parser.add_argument("--verbose", action="store_true", help="show what the workers log")
    return parser


if __name__ == "__main__":
    sys.exit(main())
