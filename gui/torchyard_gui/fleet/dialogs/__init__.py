"""The dialogs of the Fleet page."""
