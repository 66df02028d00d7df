"""Tables of the commands with colours, on a terminal, if ``rich`` is installed."""
