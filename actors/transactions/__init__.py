"""The transaction coordinator's shell: calls in, markers out, and what it looks for by itself.

Start at ``coordinator``; ``marker_sender`` is the last step of every transaction.
"""
