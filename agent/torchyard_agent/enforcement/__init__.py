"""Enforces the calendar on a host's GPUs. Enforcement is off unless an administrator enables it.

`classification`, `escalation` and `booking_usage` do no I/O. `process_activity`, `process_identity`, `process_origin`
and `terminal_messages` read or signal processes, or write to terminals. `enforcer` combines all of them for
`daemon.bookings`.
"""
