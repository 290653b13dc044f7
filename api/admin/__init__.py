"""Operators' questions and changes: topics, groups, transactions. Start at ``admin``."""
