"""The group coordinator's shell. Start at ``coordinator``."""
