"""kombu accepts no dotted path in a broker URL, so this registers ``jobs://`` there."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("jobs", "jobs.contrib.transport.transport:Transport")
