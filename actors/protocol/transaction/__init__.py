"""The rules of transactions: one coordinator shard's ids, from first partition to COMPLETE.

Start at ``transaction_machine``, which also has the operators' requests and the coordinator's own
timeouts. ``producers`` and ``runs`` decide the rest; ``ids`` holds the state of all ids.
``transaction_state`` has the transitions of one id, ``end`` the table of verdicts, ``told`` the
order of a version 1 client's requests, ``transaction_records`` the bytes of the records.
"""
