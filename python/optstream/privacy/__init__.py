"""What is promised and what it costs: the part to audit. It imports nothing of the other packages but errors."""
