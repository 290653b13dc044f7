"""Programs of Kafka's clients, ported: the guide "Porting" sets them beside their originals."""
