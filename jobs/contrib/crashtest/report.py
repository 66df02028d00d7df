"""What was found: as text, as JSON, and as an HTML page that shows the run as a time line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from django.template import Context, Engine

from jobs.contrib.crashtest.compare import Difference
from jobs.contrib.crashtest.recorder import Operation


@dataclass
class Finding:
    """A fault after which something else is left than after a run without one."""

    #: ``rows``, ``twice`` or ``lost`` (an effect), ``failed`` (the job), ``again`` (a second job of the idempotency
    #: key), ``deadlock``.
    kind: str
    #: The fault, in words.
    fault: str
    #: A line of the task's own code.
    file: str
    line: int
    cure: str
    differences: list[Difference] = field(default_factory=list)
    #: What is wrong, in words.
    says: list[str] = field(default_factory=list)
    #: After which operations the run was killed when this was found; empty for two runs at once.
    points: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        more = f" (and at {len(self.points) - 1} more)" if len(self.points) > 1 else ""
        where = f"{self.file}:{self.line}"
        return "\n".join([f"{where}: {self.fault}{more}", *(f"  {each}" for each in self.says), f"  cure: {self.cure}"])


@dataclass
class Examination:
    """What was tried with a task, and what came of it."""

    task: str
    call: str
    #: The operations of a run without a fault.
    operations: list[Operation] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    #: The points at which it was killed, and how many schedules of two runs at once were tried.
    points: list[int] = field(default_factory=list)
    schedules: int = 0
    #: What was left out, and why.
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, finding: Finding) -> None:
        """Add a finding. If another point led to the same one, it is added to that one."""
        for known in self.findings:
            if (known.kind, known.says) == (finding.kind, finding.says):
                known.points += finding.points
                return
        self.findings.append(finding)

    def __str__(self) -> str:
        tried = f"killed at {len(self.points)} points, two at once in {self.schedules} ways, in {self.seconds:.1f} s"
        verdict = f"{len(self.findings)} findings" if self.findings else "nothing found"
        texts = [f"{number}. {each}" for number, each in enumerate(self.findings, 1)]
        return "\n".join([f"{self.call}: {verdict} ({tried})", *texts, *(f"note: {each}" for each in self.notes)])


def as_html(examination: Examination) -> str:
    """A page in one file, which loads nothing else."""
    numbered = list(enumerate(examination.findings, 1))
    moments = []
    for number, operation in enumerate([None, *examination.operations]):
        found = [index for index, finding in numbered if number in finding.points]
        verdict = "found" if found else "fine" if number in examination.points else "left out"
        moments.append({"operation": operation, "verdict": verdict, "findings": found})
    engine = Engine(dirs=[str(Path(__file__).parent)])
    context = {"examination": examination, "findings": numbered, "moments": moments}
    return engine.get_template("report.html").render(Context(context))
