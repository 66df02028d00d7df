"""Names and errors may hold anything: characters that control a terminal, or begin a line, are escaped in our log."""
