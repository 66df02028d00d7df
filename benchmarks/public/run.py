"""Run scenes of the public benchmark here, with its own harness, and a PostgreSQL of our own in place of Docker's.

    git clone https://github.com/hardbyte/postgresql-job-queue-benchmarking harness
    python3.13 -m venv harness/venv && harness/venv/bin/pip install psycopg[binary] matplotlib pandas numpy pydantic
    BENCH_ADAPTER_PYTHON=$(which python) harness/venv/bin/python -m benchmarks.public.run --harness harness

The harness decides what a scene is and what came of it: this changes how long its phases are, and nothing else.
``BENCH_ADAPTER_PYTHON`` is the Python that has ``jobs``, as the harness needs another one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from tests.helpers.servers import Postgres

HERE = Path(__file__).parent

#: Where the harness looks for the server, and as whom.
PORT, ROLE = 15555, "bench"

#: The harness's chaos and pressure scenes, with ``{0}`` for the seconds of a phase.
SCENES = {
    "crash_recovery": "kill=kill-worker(instance=0):{0}s restart=start-worker(instance=0):{0}s",
    "crash_under_load": "pressure=high-load:{0}s kill=kill-worker(instance=0):{0}s "
    "restart=start-worker(instance=0):{0}s",
    "repeated_kills": "repeated=repeated-kill(instance=0,period=20s):{1}s",
    "postgres_restart": "restart=postgres-restart:{0}s",
    "pg_backend_kill": "kills=pg-backend-kill(rate=2):{0}s",
    "pool_exhaustion": "exhaustion=pool-exhaustion(idle_conns=300):{0}s",
    "idle_in_tx": "idle=idle-in-tx:{1}s",
    "active_readers": "readers=active-readers:{1}s",
    "high_load": "pressure=high-load:{1}s",
}


#: Linux ends a server with the thread that started it. This one lasts.
_starter = ThreadPoolExecutor(1)


class Server(Postgres):
    def prepare(self) -> None:
        self.port = PORT
        super().prepare()

    def end(self) -> None:
        """As ``docker stop`` does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public.run", description=__doc__.split("\n\n")[0])
    parser.add_argument("--harness", type=Path, required=True, help="a checkout of the benchmark")
    parser.add_argument("--scenes", default=",".join(SCENES), help=f"some of {','.join(SCENES)} (all)")
    parser.add_argument("--systems", default="jobs", help="jobs, procrastinate (jobs)")
    parser.add_argument("--rate", type=int, default=50, help="jobs in a second for each replica (50)")
    parser.add_argument("--workers", type=int, default=4, help="processes of each replica (4)")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20, help="of a phase; some take twice as long (20)")
    options = parser.parse_args()
    sys.path.insert(0, str(options.harness.resolve()))
    found: list[tuple[str, str, dict[str, Any]]] = []
    server = _starter.submit(Server, ("max_connections=400", "shared_buffers=256MB", "wal_level=replica")).result()
    try:
        server.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{ROLE}'")
        for scene, system in product(options.scenes.split(","), options.systems.split(",")):
            try:
                said = _run(scene, system, server, options)
            except (Exception, SystemExit) as exc:
                # As the harness counts it: a system that ends, or does not stop, has not passed.
                said = {"error": repr(exc)}
            found.append((scene, system, said))
            print(json.dumps(found[-1]), flush=True)  # noqa: T201
    finally:
        server.stop()
    print(_table(found))  # noqa: T201
    return 0


def _table(found: Sequence[tuple[str, str, dict[str, Any]]]) -> str:
    """What the harness computed."""
    head = "scene", "system", "baseline/s", "during/s", "recovery/s", "of the baseline", "s until 90 %", "jobs lost"
    rows: list[tuple[str, ...]] = [head, ("---", "---", *["---:"] * 6)]
    for scene, system, said in found:
        if "error" in said:
            rows.append((scene, system, said["error"], *[""] * 5))
            continue
        before, during, *_, after = (block for name, block in said["phases"].items() if name != "warmup")
        rates = [each["median_throughput_per_s"] or 0.0 for each in (before, during, after)]
        part = f"{rates[2] / rates[0]:.0%}" if rates[0] else "-"
        times = [after.get(name) for name in ("chaos_recovery_time_s", "jobs_lost")]
        shown = ["-" if each is None else f"{each:.1f}" for each in times]
        rows.append((scene, system, *(f"{rate:.1f}" for rate in rates), part, *shown))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _run(scene: str, system: str, server: Server, options: argparse.Namespace) -> dict[str, Any]:
    from bench_harness import adapters, orchestrator

    python = os.environ.get("BENCH_ADAPTER_PYTHON", sys.executable)

    def native(program: Path) -> Any:
        return lambda manifest, overrides: adapters.LaunchSpec(
            [python, str(program)], adapters._base_env(manifest, overrides)
        )

    # The pacer of the harness knows no other rate than the first one.
    os.environ["PRODUCER_PACING"] = "adapter" if "high-load" in SCENES[scene] else "harness"
    others = {"procrastinate": options.harness / "procrastinate-bench"}
    for name, folder in {"jobs": HERE, **others}.items():
        program = folder / ("adapter.py" if name == "jobs" else "main.py")
        adapters.ADAPTERS[name] = adapters.AdapterEntry(folder, lambda skip: None, native(program))
    orchestrator.start_postgres = orchestrator.stop_postgres = lambda image: None
    orchestrator._compose_stop_postgres = lambda image: server.end()
    orchestrator._compose_start_postgres = lambda image: _starter.submit(server.start).result()
    seconds, twice = options.seconds, 2 * options.seconds
    specs = [f"warmup=warmup:{seconds}s", f"baseline=clean:{seconds}s", *SCENES[scene].format(seconds, twice).split()]
    command = ["run", "--fast", "--skip-build", "--systems", system, "--sample-every", "2"]
    command += ["--producer-rate", str(options.rate), "--worker-count", str(options.workers)]
    command += ["--replicas", str(options.replicas)]
    for spec in [*specs, f"recovery=clean:{seconds}s"]:
        command += ["--phase", spec]
    before = set(orchestrator.RESULTS_ROOT.glob("*/summary.json"))
    orchestrator.main(command)
    [summary] = set(orchestrator.RESULTS_ROOT.glob("*/summary.json")) - before
    said: dict[str, Any] = json.loads(summary.read_text())["systems"][system]
    return said


if __name__ == "__main__":
    sys.exit(main())
