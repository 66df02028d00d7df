from jobs import signals as signals
from jobs.contrib.batches.batch import batch as batch
from jobs.contrib.changes.changes import cancel as cancel
from jobs.contrib.changes.changes import delete as delete
from jobs.contrib.changes.changes import kill as kill
from jobs.contrib.changes.changes import move as move
from jobs.contrib.changes.changes import retry as retry
from jobs.contrib.durable.signals import asignal as asignal
from jobs.contrib.durable.signals import signal as signal
from jobs.contrib.effects.ledger import effect as effect
from jobs.contrib.guards.guards import guard as guard
from jobs.contrib.locks.locks import lock as lock
from jobs.contrib.once.once import once as once
from jobs.contrib.tags.tags import tagged as tagged
from jobs.errors import Busy as Busy
from jobs.errors import Cancel as Cancel
from jobs.errors import EffectParked as EffectParked
from jobs.errors import IdempotencyMismatch as IdempotencyMismatch
from jobs.errors import Snooze as Snooze
from jobs.errors import UniqueBusy as UniqueBusy
from jobs.errors import UniqueTaken as UniqueTaken
from jobs.task import Task as Task
from jobs.typed import task as task

__version__: str
