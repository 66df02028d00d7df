"""``manage.py jobs verify``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobs.commands.base import AS_JSON, Subcommand, option
from jobs.conf import conf
from jobs.verify import Finding, Report, Unverifiable, verify


class Verify(Subcommand):
    name = "verify"
    summary = "hold the promise against the data: what breaks it, and what is about to be put right"
    more = (
        "One line for each rule. A violation breaks the promise. A row that recovers waits for a worker, for a person\n"
        "(an external call), behind others, or for no longer than recovery may take. Rows that should have recovered\n"
        "by now are watched before they are called violations; that takes up to a minute, and only if there are any.\n"
        "Nothing is changed.\n"
        "\n"
        "The exit status is 0 without violations, 1 with violations, 2 if a database cannot be asked. Of each live\n"
        "state 10,000 jobs are read, and of history 100,000 of those that were made in the last day."
    )
    options = (
        AS_JSON,
        option("--all", action="store_true", dest="everything", help="read all jobs, however long it takes"),
        option(
            "--no-watch",
            action="store_false",
            dest="patient",
            help="let the times in the rows decide at once; right after an outage of the database they are wrong",
        ),
    )
    examples = ("verify", "verify --verbosity 2", "verify --all --json")

    def run(self, *, as_json: bool, everything: bool, patient: bool, verbosity: int = 1, **options: Any) -> None:
        try:
            report = verify(everything=everything, patient=patient, tell=self._tell)
        except (Unverifiable, ImproperlyConfigured) as exc:
            raise CommandError(str(exc), returncode=2) from exc
        if as_json:
            self.say_json(as_dict(report, everything))
        else:
            self._write(report, verbosity)
        if report.violations:
            raise CommandError(f"{report.violations} violations of the promise.")

    def _tell(self, line: str) -> None:
        self.stderr.write(line, self.style.NOTICE)

    def _write(self, report: Report, verbosity: int) -> None:
        width = max(len(finding.rule) for finding in report.findings)
        for finding in report.findings:
            word, style = self._verdict(finding)
            self.say(f"{finding.rule.ljust(width)}  {style(word)}  {finding.says}")
            if verbosity > 1:
                for example in finding.examples:
                    self.say(f"{' ' * width}    {example}")
        workers = f"{report.workers} worker{'' if report.workers == 1 else 's'}"
        self.say(
            f"{len(report.findings)} rules, {report.violations} violations, {report.recovering} recovering, {workers}"
            + ("" if report.workers else ": nothing recovers without one")
        )

    def _verdict(self, finding: Finding) -> tuple[str, Any]:
        parts = [f"{word} {count}" for word, count in _counts(finding).items() if count]
        style = self.style.ERROR if finding.violations else self.style.WARNING if parts else self.style.SUCCESS
        return (", ".join(parts) or "ok").ljust(13), style


def _counts(finding: Finding) -> dict[str, int]:
    return {"violations": finding.violations, "recovering": finding.recovering}


def as_dict(report: Report, everything: bool) -> dict[str, Any]:
    return {
        "violations": report.violations,
        "recovering": report.recovering,
        "workers": report.workers,
        "databases": list(conf().DATABASES),
        "everything": everything,
        "rules": [asdict(finding) for finding in report.findings],
    }
