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
from concurrent.futures import ThreadPoolExecutor
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
    server = _starter.submit(Server, ("max_connections=400", "shared_buffers=256MB", "wal_level=replica")).result()
    try:
        server.execute(f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{ROLE}'")
        for scene in options.scenes.split(","):
            _run(scene, server, options)
    finally:
        server.stop()
    return 0


def _run(scene: str, server: Server, options: argparse.Namespace) -> None:
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
    command = ["run", "--fast", "--skip-build", "--systems", options.systems, "--sample-every", "2"]
    command += ["--producer-rate", str(options.rate), "--worker-count", str(options.workers)]
    command += ["--replicas", str(options.replicas)]
    for spec in [*specs, f"recovery=clean:{seconds}s"]:
        command += ["--phase", spec]
    before = set(orchestrator.RESULTS_ROOT.glob("*/summary.json"))
    orchestrator.main(command)
    for summary in set(orchestrator.RESULTS_ROOT.glob("*/summary.json")) - before:
        print(json.dumps({"scene": scene, **json.loads(summary.read_text())}), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
