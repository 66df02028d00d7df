"""What the pages cost when there is much history."""
