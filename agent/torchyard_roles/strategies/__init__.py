"""The strategies of distributed training, one folder or module each.

A new strategy needs a subclass of `base.Strategy` and a line in `registry.choose`. A script may also define its own.
"""
