"""The launch panel: checklist and progress of a launch."""
