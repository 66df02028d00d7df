"""Guards have no part in what the core does; a body calls them."""
