"""Which exceptions are temporary: of networks, mail servers, services and databases that were away or too busy."""
