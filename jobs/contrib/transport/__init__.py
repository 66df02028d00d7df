"""The broker when there is none: ``broker_url = "jobs://"`` is the database."""

PRIVATE = """
kombu.transport.virtual:Channel._get_message_priority self message | transport.py: the order of messages
kombu.transport.virtual:Transport._deliver self message queue | transport.py: a message that came
kombu.transport.virtual:Channel._active_queues -        | transport.py: the queues that are consumed
kombu.transport.virtual:QoS._delivered -                | transport.py: messages that a consumer holds
kombu.transport.virtual:QoS._dirty -                    | transport.py: the same
"""
