"""oncelog: an exactly-once, transactional event log for Ray."""
