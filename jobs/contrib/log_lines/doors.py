"""The part of the escaped log lines in the core."""

from jobs.doors import Extension


class LogLines(Extension):
    def ready(self) -> None:
        from jobs.conf.logs import logger
        from jobs.contrib.log_lines.escaped import Escaped

        logger.addFilter(Escaped())
