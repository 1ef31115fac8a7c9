"""What is used and what is allocated, written to the metrics store."""
