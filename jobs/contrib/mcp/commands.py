"""``manage.py jobs mcp``."""

import sys
from argparse import Namespace
from contextlib import redirect_stdout

from jobs.contrib.console.base import JobsCommand, option, subcommand
from jobs.contrib.mcp.server import FIXED, READING, Server


@subcommand(
    option("--replay", "also the tool replay: it runs the body of a job, and rolls it back", action="store_true")
)
def mcp(out: JobsCommand, args: Namespace) -> None:
    """Answer an agent's questions about the jobs, by the Model Context Protocol over stdin and stdout.

    It is started by the agent's program, and ends with its stdin. Its tools are those commands that change nothing
    (why, show, list, status, nodes, verify), with the same options. Values that JOBS["REDACT"] hides are hidden.

    examples:
      manage.py jobs mcp
    """
    server = Server(type(out), (*READING, *FIXED) if args.replay else READING)
    # Text that the project's own code prints is not part of the protocol.
    with redirect_stdout(sys.stderr):
        for line in sys.stdin.buffer if sys.stdin else ():  # None: it is closed.
            if line.strip() and (said := server.answer(line)):
                out.stdout.write(said)
                out.stdout.flush()
