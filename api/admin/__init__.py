"""The admin client: topics, replicas, groups, transactions. Start at ``admin``."""
