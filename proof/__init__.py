"""The protocol as models, checked exhaustively by SPIN, and its traces played against the code: ``python -m proof``.

SPIN, because it is what the field knows, explores a million states a second, compiles in a second, and is a package of
Debian; TLC needs Java, and a checker of our own would have to be believed first.
"""
