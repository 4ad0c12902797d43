"""Free GPUs and times, and the reasons why there are none."""
