"""A topology as an editor has it open: text, edits, undo, clipboard, recovery."""
