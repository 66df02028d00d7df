"""A supervisor that starts again when a database's file was replaced."""

import os

from jobs.conf import conf
from jobs.conf.logs import logger
from jobs.contrib.replaced_files.store import REPLACED, is_replaced
from jobs.lifecycle.worker_state import worker_state
from jobs.worker.supervisor import Supervisor


class Watching(Supervisor):
    def _heartbeat(self) -> None:
        if any(map(is_replaced, conf().DATABASES)):
            # As at a worker's start: this node is not known there, and the jobs there may be a copy's.
            logger.error("%s: the supervisor starts again", REPLACED, extra=worker_state.about("database_replaced"))
            os._exit(1)
        super()._heartbeat()
