"""Which exceptions may pass: those of networks, mail servers, services and databases that were away or too busy."""
