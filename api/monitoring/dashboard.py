"""The Grafana dashboard, in the form that Ray writes its own in, so that Grafana loads them alike.

It has Ray's variables ``datasource`` and ``SessionName``, and one for topics. Panels are two in a
row under their headings; their numbers depend on their order only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

from oncelog.actors.process.metrics import REPLICA_OFFLINE
from oncelog.api.monitoring.panels import ROWS, SESSION, Panel, Row

DASHBOARD_FILE: Final = "oncelog_grafana_dashboard.json"
DASHBOARD_UID: Final = "oncelogDashboard"
"""Part of the dashboard's address in Grafana."""

COLUMNS: Final = 24
"""How wide Grafana's grid is."""

PANEL_WIDTH: Final = 12
PANEL_HEIGHT: Final = 8
HEADING_HEIGHT: Final = 1

DATA_SOURCE: Final = "${datasource}"


def dashboard_json() -> str:
    """The whole dashboard, as a file to be loaded."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _dashboard() -> dict[str, Any]:
    series = REPLICA_OFFLINE.exported_names[0]
    return {
        "annotations": {"list": []},
        "editable": True,
        "graphTooltip": 1,
        "links": [],
        "panels": list(_panels()),
        "rayMeta": ["supportsFullGrafanaView"],
        "refresh": "10s",
        "schemaVersion": 27,
        "style": "dark",
        "tags": ["oncelog"],
        "templating": {
            "list": [
                {
                    "description": "Where Prometheus is.",
                    "hide": 2,
                    "name": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                    "type": "datasource",
                },
                _variable("SessionName", f"label_values({series}, SessionName)", is_multi=False),
                _variable("Topic", f"label_values({series}{{{SESSION}}}, topic)", is_multi=True),
            ]
        },
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "title": "oncelog",
        "uid": DASHBOARD_UID,
        "version": 1,
    }


def _variable(name: str, query: str, *, is_multi: bool) -> dict[str, Any]:
    """A choice above the panels, of what the label's values are; at first all of them."""
    return {
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": DATA_SOURCE,
        "definition": query,
        "hide": 0,
        "includeAll": True,
        "multi": is_multi,
        "name": name,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "refresh": 2,
        "sort": 1,
        "type": "query",
    }


def _panels() -> Iterator[dict[str, Any]]:
    ids = itertools.count(1)
    top = 0
    for row in ROWS:
        yield _heading(row, next(ids), top)
        top += HEADING_HEIGHT
        for number, panel in enumerate(row.panels):
            place = {
                "h": PANEL_HEIGHT,
                "w": PANEL_WIDTH,
                "x": number * PANEL_WIDTH % COLUMNS,
                "y": top + number * PANEL_WIDTH // COLUMNS * PANEL_HEIGHT,
            }
            yield _panel(panel, next(ids), place)
        top += -(-len(row.panels) * PANEL_WIDTH // COLUMNS) * PANEL_HEIGHT


def _heading(row: Row, panel_id: int, top: int) -> dict[str, Any]:
    return {
        "collapsed": False,
        "gridPos": {"h": HEADING_HEIGHT, "w": COLUMNS, "x": 0, "y": top},
        "id": panel_id,
        "panels": [],
        "title": row.title,
        "type": "row",
    }


def _panel(panel: Panel, panel_id: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "datasource": DATA_SOURCE,
        "description": panel.description,
        "fieldConfig": {
            "defaults": {
                "custom": {"fillOpacity": 10, "lineWidth": 1, "showPoints": "auto"},
                "min": 0,
                "unit": panel.unit,
            },
            "overrides": [],
        },
        "gridPos": place,
        "id": panel_id,
        "options": {
            "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"expr": expression, "legendFormat": legend, "refId": letter}
            for letter, (expression, legend) in zip("ABCDEFGH", panel.targets, strict=False)
        ],
        "title": panel.title,
        "type": "timeseries",
    }
