"""The rules: pure, deterministic machines and the messages they exchange.

Nothing here knows Ray, asyncio, a clock, a disk or randomness; time arrives as an argument.
"""
