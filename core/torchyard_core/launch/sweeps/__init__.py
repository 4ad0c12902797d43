"""The launch of a sweep: its checks, and the hosts and GPUs on which its trials run."""
