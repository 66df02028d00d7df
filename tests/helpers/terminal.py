"""What a terminal would obey."""

#: It clears the screen, hides what follows, writes a title, begins a line, turns the text around, and erases.
OBEYED = "\x1b[2J\x1b[8m\x1b]0;title\x07\nforged\r\u202e\x9b1K"
