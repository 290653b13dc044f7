"""The transaction coordinator's shell: it answers calls, sends markers, and runs timeouts.

Start at ``transaction_coordinator``; ``completions`` sends the markers and completes transactions.
"""
