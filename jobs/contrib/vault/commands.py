"""``manage.py jobs encrypt``: run it after a change of the keys, or of what is encrypted."""

from argparse import Namespace
from collections import Counter
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from jobs.conf import conf, loaded_app
from jobs.contrib.console.base import DRY_RUN, JobsCommand, option, reported, subcommand
from jobs.contrib.vault.seal import FOLLOWERS, inside, sealed
from jobs.contrib.vault.tokens import CannotDecrypt, new_key, renewed
from jobs.models import Job
from jobs.store import databases

_READ = Job.objects.only("pk", "task", "args", "kwargs", "options", "lease", "state")


@subcommand(option("--new-key", "print a new key, and do nothing else", action="store_true"), DRY_RUN)
def encrypt(out: JobsCommand, args: Namespace) -> None:
    """Encrypt the arguments of all jobs with the newest key, as JOBS['ENCRYPT'] says now.

    For a new key: put it first in JOBS['ENCRYPT_KEYS'], restart all processes, run this, then remove the old one.
    It reads all jobs, and may run at any time, and again. The exit status is 1 if some could not be decrypted.

    examples:
      manage.py jobs encrypt --new-key
      manage.py jobs encrypt --dry-run
      manage.py jobs encrypt
    """
    if args.new_key:
        with reported(ImproperlyConfigured):
            key = new_key()
        out.say_json({"key": key})
        out.say(key)
        return
    loaded_app()
    done: Counter[str] = Counter(changed=0, unreadable=0)
    for alias in conf().DATABASES:
        rows = _READ.using(alias).order_by("pk")
        page = list(rows[: conf().BATCH])
        while page:
            for job in page:
                done[_encrypt(job, args.dry_run)] += 1
            page = list(rows.filter(pk__gt=page[-1].pk)[: conf().BATCH])
    out.say_json({"dry_run": args.dry_run, "changed": done["changed"], "unreadable": done["unreadable"]})
    out.say(f"{done['changed']} {'would be ' if args.dry_run else ''}changed, {done['unreadable']} cannot be decrypted")
    if done["unreadable"]:
        raise CommandError("The key of some is not in JOBS['ENCRYPT_KEYS'].")


def _encrypt(job: Any, is_dry: bool) -> str:
    if not isinstance(job.args, list) or not isinstance(job.kwargs, dict):
        return "odd"
    options = job.options if isinstance(job.options, dict) else {}
    given = job.args, job.kwargs, {name: options[name] for name in FOLLOWERS if name in options}
    try:
        args, kwargs, followers = renewed(list(given))
    except (CannotDecrypt, ImproperlyConfigured):
        # Also if no key is set.
        return "unreadable"
    args, kwargs = sealed(job.task, args, kwargs)
    followers = {name: inside(each) for name, each in followers.items()}
    if (args, kwargs, followers) == given:
        return "same"
    if is_dry:
        return "changed"
    # Race: a retry may have changed the job's arguments. Then the row is read again: it may not keep its old key.
    own = Job.objects.using(job._state.db).filter(pk=job.pk, lease=job.lease, state=job.state)
    changes = {"args": args, "kwargs": kwargs, **({"options": {**options, **followers}} if followers else {})}
    write = partial(own.update, **changes)
    if databases.again_if_moved(own.db, write, is_one=True):
        return "changed"
    moved = _READ.using(job._state.db).filter(pk=job.pk).first()
    return "gone" if moved is None else _encrypt(moved, is_dry)
