"""kombu accepts no dotted path in a broker URL; this makes ``jobs://`` one that it knows."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("jobs", "jobs.contrib.transport.transport:Transport")
