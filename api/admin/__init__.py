"""Operators' questions and changes: topics, groups, transactions. Start at ``async_admin``."""
