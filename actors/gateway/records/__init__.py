"""Records of Kafka's clients: Produce, Fetch, ListOffsets, and the ids of idempotent producers."""
