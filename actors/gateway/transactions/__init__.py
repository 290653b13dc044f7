"""Transactions of Kafka's producers."""
