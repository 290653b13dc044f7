"""The transaction coordinator's shell: calls in, markers out, and what it looks for by itself.

Start at ``transaction_coordinator``; ``completions`` has the last step of every transaction, its
markers.
"""
