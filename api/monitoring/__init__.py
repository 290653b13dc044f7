"""What Grafana shows and Prometheus warns of: dashboard and alert rules, made from the metrics.

Start at ``dashboard``; its panels are the table in ``panels``, the rules that in ``alerts``.
Nothing here names a metric but through ``queries``, so none is named that does not exist.
"""
