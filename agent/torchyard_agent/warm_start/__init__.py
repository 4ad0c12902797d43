"""What the interpreters of ranks find first on PYTHONPATH when they are started early; no module of the agent."""
