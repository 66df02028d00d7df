"""One Django project for every peer: ``BENCH_PEER`` says which."""
