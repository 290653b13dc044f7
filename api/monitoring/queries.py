"""Questions to Prometheus about our metrics, and how each kind has to be asked.

A process that was restarted leaves its gauges behind for seconds, so of several the highest counts,
or the lowest; its counters stay, and are summed as rates.
"""

from __future__ import annotations

from typing import Final

from oncelog.actors.process.metrics import DIRECTORY_TAGS, TAGS, Kind, Metric

REPLICA: Final = TAGS
DIRECTORY: Final = DIRECTORY_TAGS
PARTITION: Final = TAGS[:2]
"""What is asked of a partition is answered by whichever replica has the highest value."""

RATE_WINDOW: Final = "2m"
"""Over which a rate is taken: many exports, which are 10 s apart, and scrapes."""


def highest(metric: Metric, *by: str, where: str = "") -> str:
    """The highest value of a gauge for each combination of the tags ``by``."""
    return f"max by ({', '.join(by)}) ({_series(metric, where)})"


def lowest(metric: Metric, *by: str, where: str = "") -> str:
    """The lowest value of a gauge."""
    return f"min by ({', '.join(by)}) ({_series(metric, where)})"


def rate(metric: Metric, *by: str, where: str = "", window: str = RATE_WINDOW) -> str:
    """By how much a counter grows in a second; of a histogram, how many values there are."""
    return f"sum by ({', '.join(by)}) (rate({_series(metric, where)}[{window}]))"


def quantile(share: float, metric: Metric, *by: str, where: str = "") -> str:
    """The value that this share of a histogram's values does not exceed."""
    bucket = f"{metric.exported_names[0]}{_selector(where)}"
    buckets = f"sum by ({', '.join((*by, 'le'))}) (rate({bucket}[{RATE_WINDOW}]))"
    return f"histogram_quantile({share}, {buckets})"


def highest_lately(metric: Metric, *by: str, where: str = "", window: str) -> str:
    """The highest value that a gauge has had in the last ``window``, also if it is gone now."""
    return f"max by ({', '.join(by)}) (max_over_time({_series(metric, where)}[{window}]))"


def _series(metric: Metric, where: str) -> str:
    """Its gauge or counter; of a histogram, that of the count."""
    is_histogram = metric.kind is Kind.HISTOGRAM
    return metric.exported_names[2 if is_histogram else 0] + _selector(where)


def _selector(where: str) -> str:
    return f"{{{where}}}" if where else ""
