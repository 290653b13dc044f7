"""What administrators of Kafka ask: topics, configurations, ACLs, brokers."""
