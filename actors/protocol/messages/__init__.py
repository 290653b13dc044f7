"""Every request and reply, as frozen structs, by whom they are for.

Nothing else lives here: no rule, no bytes. Start at ``base``, which says what all have.
"""
