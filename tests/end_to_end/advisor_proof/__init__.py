"""Proof of the advisor's predictions: measured speeds on links with limited rates, compared with predicted ones."""
