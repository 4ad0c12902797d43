"""The strategies: how trainers share a model. One folder or module each.

A strategy is added by a class of `base.Strategy` and a line in `registry.choose`; a script may bring its own.
"""
