"""What users import: cluster, producer, consumer, admin client and the command line."""
