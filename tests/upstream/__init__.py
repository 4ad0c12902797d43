"""Training loops based on public repositories, which are compared with a reference under every strategy."""
