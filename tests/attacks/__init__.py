"""Tests of attacks on hosts, protocols, files and the calendar. Each attack succeeded once and must now fail."""
