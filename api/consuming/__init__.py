"""Consumers: fetched ahead, filtered, handed over; alone or in a group.

Start at ``consumer``; ``core`` says what a poll does, ``group_membership`` is the group's protocol.
"""
