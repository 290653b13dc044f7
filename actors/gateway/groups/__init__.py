"""Consumer groups of Kafka's clients, and their positions."""
