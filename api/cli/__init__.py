"""The command line ``oncelog``. Start at ``main``; each group of commands is a module."""
