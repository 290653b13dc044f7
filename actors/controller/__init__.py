"""The controller's shell. Start at ``controller``."""
