"""The admin client: topics, replicas, groups, transactions, users, ACLs. Start at ``admin``."""
