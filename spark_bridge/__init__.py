"""Spark and Ray Data on top of the log: the data source "oncelog" and its session."""
