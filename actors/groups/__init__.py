"""The group coordinator's shell. Start at ``group_coordinator``."""
