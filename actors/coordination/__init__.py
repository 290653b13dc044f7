"""What the coordinators have in common: a machine on a log that it leads.

Start at ``runtime``: decide, append, wait, apply, reply.
"""
