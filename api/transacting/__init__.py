"""The client side of a producer's transaction: what may be called when, and the calls.

Start at ``producer_transaction``: the pure rules, and what failures mean. ``transaction_manager``
has all that one producer needs; ``requests`` makes the calls; ``enrolment`` decides when partitions
are enrolled.
"""
