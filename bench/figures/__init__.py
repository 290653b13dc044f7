"""What figures are called and how tables show them. Pure.

``table`` sums up rounds; ``kafka_rows`` and ``spark_parts`` name what these benchmarks measure.
"""
