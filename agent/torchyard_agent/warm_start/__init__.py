"""The first folder on PYTHONPATH of interpreters that are started early; contains no module of the agent."""
