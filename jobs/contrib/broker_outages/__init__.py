"""Workers live through an outage of their broker, and stop without it."""

PRIVATE = """
billiard.pool:Pool.maintain_pool self                   | outages.py: dead processes are replaced without the event loop
celery.concurrency.asynpool:AsynPool.process_flush_queues self proc  | outages.py: a new process says that it is up
celery.concurrency.asynpool:AsynPool._waiting_to_start - | outages.py: new processes that have not said that they are up
celery.worker.consumer:Consumer.ensure_connected self conn | outages.py: dead processes are replaced meanwhile
celery.worker.consumer:Consumer.create_task_handler self | outages.py: a late acknowledgement ends no worker
celery.worker.consumer:Consumer.on_invalid_task self body message exc | outages.py: messages that Celery cannot read
celery.worker.consumer:Consumer.on_connection_error_after_connected self exc | outages.py: nor does a lost connection
celery.worker.consumer:Consumer.shutdown self           | outages.py: a broker that says nothing ends no stop
"""
