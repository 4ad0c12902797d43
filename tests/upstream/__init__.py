"""Training loops as public repositories have them, compared under every strategy with a reference."""
