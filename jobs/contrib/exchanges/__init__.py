"""A call that names an exchange and a routing key goes to the queue of the app that is bound so, as a message would."""
