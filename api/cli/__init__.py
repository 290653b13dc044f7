"""The command line ``oncelog``. Start at ``main``; each command is a module of its name."""
