"""The folder that comes first on PYTHONPATH of interpreters that are started early.

It contains only `sitecustomize`.
"""
