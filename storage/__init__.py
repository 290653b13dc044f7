"""Bytes on disk: record batches, segments, indexes, snapshots and recovery."""
