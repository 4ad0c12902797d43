"""Training loops based on public repositories. Tests compare their results under every strategy with a reference."""
