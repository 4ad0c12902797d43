"""The launch panel: a checklist that fills in live, and how far sending and starting are."""
