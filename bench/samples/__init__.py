"""One script per benchmark of the same name that takes its figures in processes of their own.

``measuring.findings`` runs them. They are never imported.
"""
