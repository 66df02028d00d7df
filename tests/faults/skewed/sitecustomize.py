"""Python in a process with a skewed clock: sleep without clock_nanosleep, of which libfaketime 0.9 makes EINVAL."""

import select
import time


def sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select((), (), (), seconds)


time.sleep = sleep
