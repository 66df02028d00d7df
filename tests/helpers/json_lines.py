"""Log records as lines of JSON, with all their fields."""

import json
import logging

#: What every record has.
COMMON = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        more = {name: value for name, value in vars(record).items() if name not in COMMON}
        return json.dumps({"logger": record.name, "level": record.levelname, "message": record.getMessage(), **more})
