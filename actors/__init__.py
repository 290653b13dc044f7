"""The actors: thin shells around the protocol machines, their transport and their launch."""
