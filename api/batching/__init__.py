"""Records become batches: partitioned, gathered, encoded, with a future each.

No calls and no transactions here. Start at ``accumulator``.
"""
