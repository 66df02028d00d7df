"""``manage.py jobs verify``."""

from argparse import Namespace
from dataclasses import asdict

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobs.conf import conf
from jobs.contrib.console.base import PROVE, JobsCommand, option, reported, subcommand
from jobs.contrib.verify import verify as promise


@subcommand(
    option("--all", "read all jobs, however long it takes", action="store_true", dest="everything"),
    option(
        "--no-watch",
        action="store_false",
        dest="patient",
        help="let the times in the rows decide at once; right after an outage of the database they are wrong",
    ),
    wish=PROVE,
)
def verify(out: JobsCommand, args: Namespace) -> None:
    """Hold the promise against the data: what breaks it, and what is about to be put right.

    One line for each rule. A violation breaks the promise. A row that recovers waits for a worker, for a person
    (an external call), behind others, or for no longer than recovery may take. Rows that should have recovered
    by now are watched before they are called violations; that takes up to a minute, and only if there are any.
    Nothing is changed.

    The exit status is 0 without violations, 1 with violations, 2 if a database cannot be asked. Of each live
    state 10,000 jobs are read, of history the last 20,000 of those that ended in the last day, and of the markers
    the newest 10,000: however long history is, that takes about as long. --all reads all of it, 100,000 jobs at a time.

    examples:
      manage.py jobs verify
      manage.py jobs verify --verbosity 2
      manage.py jobs verify --all --json
    """
    with reported(promise.Unverifiable, ImproperlyConfigured, code=2):
        report = promise.verify(
            everything=args.everything, patient=args.patient, tell=lambda line: out.warn(line, out.style.NOTICE)
        )
    counts = {"violations": report.violations, "recovering": report.recovering, "workers": report.workers}
    rules = [asdict(finding) for finding in report.findings]
    out.say_json({**counts, "databases": list(conf().DATABASES), "everything": args.everything, "rules": rules})
    width = max(len(finding.rule) for finding in report.findings)
    for finding in report.findings:
        parts = [f"{word} {count}" for word in ("violations", "recovering") if (count := getattr(finding, word))]
        style = out.style.ERROR if finding.violations else out.style.WARNING if parts else out.style.SUCCESS
        verdict = style((", ".join(parts) or "ok").ljust(13))
        out.say(f"{finding.rule.ljust(width)}  {verdict}  {finding.says}")
        for example in finding.examples if args.verbosity > 1 else ():
            out.say(f"{' ' * width}    {example}")
    workers = f"{report.workers} worker{'' if report.workers == 1 else 's'}"
    workers += "" if report.workers else ": nothing recovers without one"
    out.say(f"{len(rules)} rules, {report.violations} violations, {report.recovering} recovering, {workers}")
    if report.violations:
        raise CommandError(f"{report.violations} violations of the promise.")
