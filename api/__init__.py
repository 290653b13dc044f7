"""What users import: connections, producers, consumers, administration and the command line."""
