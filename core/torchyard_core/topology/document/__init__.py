"""The topology that is open in an editor: text, edits, clipboard and crash recovery."""
