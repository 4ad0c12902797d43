"""The strategies of distributed training, each in one folder or module.

A new strategy needs a subclass of `strategy.Strategy` and an entry in `registry.choose`. A script may also define its
own strategy.
"""
