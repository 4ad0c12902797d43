"""The ranks of one host as processes: start, supervision, GPUs, cgroup, orphans."""
