"""A year of real flights goes through oncelog exactly once, while processes are killed."""
