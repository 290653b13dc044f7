"""Every request and reply, as frozen structs, grouped by recipient.

Only messages: no rules, no bytes. Start at ``base``, which has what all share.
"""
