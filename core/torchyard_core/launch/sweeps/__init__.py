"""The launch of a sweep: its checks, and the GPUs on which each trial runs."""
