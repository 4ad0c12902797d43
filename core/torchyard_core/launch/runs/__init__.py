"""Access to runs after their launch: history, state, logs and downloads."""
