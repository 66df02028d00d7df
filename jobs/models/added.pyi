"""For type checkers: the tables of extensions, which `jobs.models` has at run time."""

from jobs.contrib.adoption.models import Instance as Instance
from jobs.contrib.batches.models import Batch as Batch
from jobs.contrib.canvas.models import Chord as Chord
from jobs.contrib.canvas.models import ChordPart as ChordPart
from jobs.contrib.effects.models import Effect as Effect
from jobs.contrib.event_broker.models import Position as Position
from jobs.contrib.limits.models import Limit as Limit
from jobs.contrib.limits.models import RateLimiter as RateLimiter
from jobs.contrib.operations.models import Action as Action
from jobs.contrib.operator.models import Order as Order
from jobs.contrib.operator.models import Overview as Overview
from jobs.contrib.operator.models import Statistic as Statistic
from jobs.contrib.schedules.models import Schedule as Schedule
from jobs.contrib.transport.models import Binding as Binding
from jobs.contrib.transport.models import Message as Message
from jobs.events.models import Event as Event
from jobs.events.models import Relay as Relay
from jobs.events.models import Subscription as Subscription
