"""Names and errors come from anywhere: what would steer a terminal, or begin a line, is escaped in our lines."""
