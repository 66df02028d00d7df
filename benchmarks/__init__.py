"""Measure what jobs cost beside other queues, and what the pages cost over a long history."""
