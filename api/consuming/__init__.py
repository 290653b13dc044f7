"""Consumers, alone or in a group: fetch ahead, filter, deliver.

Start at ``consumer``; ``core`` says what a poll does, ``membership`` is the group's protocol.
"""
