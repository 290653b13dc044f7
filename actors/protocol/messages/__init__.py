"""Every request and reply, as frozen structs, grouped by recipient.

Nothing else lives here: no rules, no bytes. Start at ``base``, which has what all share.
"""
