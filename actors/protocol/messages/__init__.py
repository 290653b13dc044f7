"""Every request and reply, as frozen structs, by whom they are for.

Nothing else lives here: no rule, no bytes. Start at ``messages``, which has the base of all and
those of partition leaders and transactions.
"""
