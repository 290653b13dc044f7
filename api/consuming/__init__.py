"""Consumers: fetched ahead, filtered, handed over; alone or in a group.

Start at ``consumer``; ``core`` says what a poll does, ``membership`` is the group's protocol.
"""
