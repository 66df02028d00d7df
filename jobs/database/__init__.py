"""The connections, and what is done with care over them."""
