"""Record batches: their bytes, and records to and from them.

Pure: bytes in, bytes out; no file. ``batch`` has the one layout of a header; ``codec`` turns
records into a batch and back, row by row or as Arrow columns, by the compiled ``_kernel``, which
``compiled`` loads. Start at ``batch``.
"""
