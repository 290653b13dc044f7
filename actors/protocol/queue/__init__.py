"""Share groups, which queues are: who holds which records, and what became of them.

Start at ``share_groups``; ``share_partition`` has the table of states.
"""
