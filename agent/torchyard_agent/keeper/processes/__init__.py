"""The processes of a run on one host: start and supervision of ranks, GPU locks, control groups and orphans."""
