"""What is measured: the log, a broker of Kafka, and servers that do nothing to compare with.

``servers`` are processes, of one broker or several; ``local_cluster`` is the whole log on one event
loop, without Ray.
"""
