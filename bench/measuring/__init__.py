"""How figures are taken, told and kept: the same for all benchmarks.

``report`` has the rounds and the targets, and keeps what was found; ``findings`` runs samples and
reads what they tell; ``processes`` starts, measures and ends what is measured.
"""
