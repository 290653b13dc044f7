"""Records become batches: partitioned, accumulated, encoded, with a future each.

No calls and no transactions here. Start at ``accumulator``.
"""
