"""Consumers, alone or in a group: fetch ahead, filter, deliver.

Start at ``consumer``; ``core`` says what a poll does, ``group_membership`` is the group's protocol.
"""
