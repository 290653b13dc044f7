"""A year of real flights goes through oncelog exactly once, while processes are killed.

``demo`` loads all of them and then processes them; in ``stream_demo`` they arrive.
"""
