"""What the mouse does in the calendar: one cancellable object for each gesture."""
