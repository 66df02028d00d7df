"""What is done once, or by one at a time: keys, markers, locks and guards."""
