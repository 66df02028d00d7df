"""What jobs cost, beside what others do; and what the pages cost when there is much history."""
