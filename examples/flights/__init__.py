"""A year of real flights goes through oncelog exactly once, while processes are killed.

``demo`` loads all flights and then processes them; in ``stream_demo`` they arrive day by day.
"""
