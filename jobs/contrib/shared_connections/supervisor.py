"""A supervisor whose threads share connections."""

from jobs.contrib.shared_connections.turns import share
from jobs.worker.supervisor import Supervisor


class Sharing(Supervisor):
    def main(self) -> None:
        share()
        super().main()
