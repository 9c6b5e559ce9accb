"""Sentences why a task or pool waits, or why a task failed, from plain facts. No I/O, no clock."""
