"""The processes of a run on one host: starting and supervising ranks, GPU locks, control groups and orphans."""
