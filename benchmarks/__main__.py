"""Measure what jobs cost beside other queues. This starts servers of its own, runs all peers in turn, in interleaved
rounds, and writes tables and charts."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import machine, processes, report, servers
from benchmarks.figures import FIGURES
from benchmarks.peers import PEERS
from benchmarks.run import ROOT, Plan, Run

RESULTS = ROOT / "benchmarks" / "results"

#: No further round begins after so many minutes.
WHOLE, QUICK = 28.0, 3.0


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    plan = Plan(
        figures=options.only or [name for name in FIGURES if not options.quick or FIGURES[name].quick_peers],
        peers=options.peers,
        is_quick=options.quick,
        rounds=options.rounds,
        seconds=60 * (options.minutes or (QUICK if options.quick else WHOLE)),
    )
    if not plan.all_takers():
        parser.error("none of these peers takes part in one of these figures")
    return processes.run(lambda: _report(plan, options))


def _report(plan: Plan, options: argparse.Namespace) -> int:
    found = _run(plan, options.slow_commits)
    is_partial = options.quick or options.only or options.peers or options.slow_commits
    is_whole = not (is_partial or "BENCH_ROWS" in os.environ)
    directory = options.output or (RESULTS if is_whole else RESULTS / "partial")
    report.write(found, directory)
    sys.stderr.write(f"written to {directory}\n")
    if options.as_json:
        sys.stdout.write(json.dumps(found.as_dict(), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(found.as_markdown())
    return 0 if found.is_good else 1


def _run(plan: Plan, has_slow_commits: bool) -> report.Report:
    takers = [PEERS[name] for name in plan.all_takers()]
    # PostgreSQL always runs: all peers look up its pid by name.
    names = {"postgres", *(name for peer in takers for name in peer.servers())}
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    with servers.scratch() as scratch, servers.running(names, has_slow_commits) as running:
        about = machine.describe(Path(scratch)) | {"has_slow_commits": has_slow_commits}
        run = Run(plan, running, Path(scratch))
        run.go()
        versions = run.versions | running.versions()
    return report.Report(
        at=at,
        is_quick=plan.is_quick,
        rounds=run.rounds,
        minutes=run.passed / 60,
        machine=about,
        versions=versions,
        figures=list(plan.figures),
        samples=run.samples,
    )


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"no such name: {', '.join(unknown)}. There are {', '.join(known)}.")
        return found

    return names


def _parser() -> argparse.ArgumentParser:
    figures = "\n".join(f"  {name:<10} {figure.title}" for name, figure in FIGURES.items())
    peers = "\n".join(f"  {name:<22} {peer.about}".rstrip() for name, peer in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"figures:\n{figures}\n\npeers:\n{peers}\n\n"
        "A whole run writes to benchmarks/results, any other to benchmarks/results/partial.\n"
        "The exit status is 1 if a goal was missed or one of our own measurements failed.",
    )
    parser.add_argument("--quick", action="store_true", help="a look, in less than 3 minutes: one round, few jobs")
    parser.add_argument("--only", type=_names(FIGURES), metavar="FIGURE,...", help="only these figures")
    parser.add_argument("--peers", type=_names(PEERS), metavar="PEER,...", help="only these peers")
    parser.add_argument("--rounds", type=int, help="at the most so many (default: up to 3, as the time allows)")
    parser.add_argument(
        "--minutes", type=float, help=f"begin no further round after that (default: {WHOLE:.0f}, quick {QUICK:.0f})"
    )
    parser.add_argument(
        "--slow-commits",
        action="store_true",
        help="each commit waits 2 ms more, as on the disks of clouds",
    )
    parser.add_argument("--output", type=Path, metavar="DIRECTORY", help="where to write instead")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON, and nothing else, to stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
