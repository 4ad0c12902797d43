"""Engines: where runs get their hosts from. Nothing outside this folder asks which engine runs a topology."""
