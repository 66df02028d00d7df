"""Whether what is installed is what jobs was tested with, and has the private names that it uses."""
