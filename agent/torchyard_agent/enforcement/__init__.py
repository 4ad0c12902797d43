"""Whose GPUs are used by whom, by the calendar's word, and what is done about it. Off unless an admin says otherwise.

`verdicts`, `cases` and `idleness` decide (values in, values out); `identity` and `terminals` touch processes and
terminals; `daemon.bookings` drives them.
"""
