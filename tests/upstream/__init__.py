"""Training loops from public repositories, compared with a reference under every strategy."""
