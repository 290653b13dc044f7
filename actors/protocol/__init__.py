"""The protocol rules: pure, deterministic state machines, and the messages between actors.

Nothing here uses Ray, asyncio, a clock, a disk or randomness; time is an argument. Shells in
``actors`` call the machines and do the I/O.
"""
