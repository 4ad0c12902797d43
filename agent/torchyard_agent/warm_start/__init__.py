"""The first folder on PYTHONPATH of interpreters that are started early. It contains no agent modules."""
