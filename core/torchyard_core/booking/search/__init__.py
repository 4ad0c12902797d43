"""Search for free GPUs and times, and reasons why a search has no result."""
