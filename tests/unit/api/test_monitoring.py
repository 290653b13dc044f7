"""Dashboard and alerts: they ask for metrics that exist, and for each that does."""

from __future__ import annotations

import json
import re

import yaml

from oncelog.actors.process.metrics import METRICS, Kind
from oncelog.actors.rpc.message_codec import REQUESTS
from oncelog.actors.transactions.completions import EndStep
from oncelog.api.monitoring import ALERTS, COLUMNS, FAILURES, alerts_yaml, dashboard_json

TAGS_OF = {name: metric.tags for metric in METRICS for name in metric.exported_names} | {
    metric.exported_names[0]: (*metric.tags, "le")
    for metric in METRICS
    if metric.kind is Kind.HISTOGRAM
}
RAY_TAGS = {"SessionName"}


def panels():
    return [one for one in json.loads(dashboard_json())["panels"] if one["type"] != "row"]


def queries():
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def alert_rules():
    (group,) = yaml.safe_load(alerts_yaml())["groups"]
    return group["rules"]


def named_in(texts):
    return {name for text in texts for name in re.findall(r"\bray_\w+", text)}


def test_every_metric_of_a_panel_or_an_alert_exists():
    asked = named_in([*queries(), *(rule["expr"] for rule in alert_rules())])
    assert asked
    assert asked <= set(TAGS_OF)


def test_every_metric_is_on_the_dashboard():
    asked = named_in(queries())
    missing = [metric.name for metric in METRICS if not asked & set(metric.exported_names)]
    assert missing == []


def test_queries_use_tags_that_the_metric_has():
    found = 0
    for query in [*queries(), *(rule["expr"] for rule in alert_rules())]:
        for by, name, where in re.findall(r"by \(([^)]*)\) [^{}[]*?(ray_\w+)\{?([^}]*)", query):
            used = set(by.split(", ")) | set(re.findall(r"(\w+)=~?\"", where)) - RAY_TAGS
            assert used <= set(TAGS_OF[name]), (name, used)
            found += 1
    assert found > len(METRICS)


def test_legends_name_only_tags_that_the_query_keeps():
    for panel in panels():
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", re.search(r"by \(([^)]*)\)", target["expr"]).group(1)))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, panel["title"]


def test_queries_ask_as_the_kind_of_the_metric_needs():
    for query in queries():
        for name in named_in([query]):
            grows = name.endswith("_total")
            assert bool(re.search(rf"rate\({name}", query)) is grows, query
            assert ("histogram_quantile" in query) is name.endswith("_bucket_total"), query


def test_methods_steps_and_codes_are_those_of_the_code():
    asked = set(re.findall(r'method="(\w+)"', " ".join(queries())))
    assert {"produce", "fetch", "end_txn"} <= asked <= set(REQUESTS)
    (ends,) = [metric for metric in METRICS if "step" in metric.tags]
    assert all(step.value in ends.description for step in EndStep)
    (failing,) = [rule["expr"] for rule in alert_rules() if rule["alert"] == "OncelogCallErrors"]
    assert re.search(r'error=~"([^"]*)"', failing).group(1) == "|".join(c.name for c in FAILURES)


def test_panels_have_ids_of_their_own_and_lie_side_by_side():
    everything = json.loads(dashboard_json())["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < COLUMNS
        taken |= cells
    for panel in panels():
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert letters


def test_the_dashboard_has_the_variables_that_its_queries_use():
    dashboard = json.loads(dashboard_json())
    known = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", " ".join([*queries(), panels()[0]["datasource"]])))
    assert used == known


def test_alerts_are_written_as_they_are_told():
    rules = alert_rules()
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    for rule, alert in zip(rules, ALERTS, strict=True):
        assert rule["expr"] == alert.expression
        assert rule["for"] == alert.lasts
        assert rule["labels"] == {"severity": alert.severity}
        assert rule["annotations"] == {"summary": alert.summary, "description": alert.advice}
        kept = set(re.findall(r"by \(([^)]*)\)", alert.expression))
        for label in re.findall(r"\$labels\.(\w+)", alert.summary):
            assert all(label in re.findall(r"\w+", by) for by in kept), alert.name


def test_a_controller_that_has_moved_to_another_broker_is_not_silent():
    told = {rule["alert"]: rule["expr"] for rule in alert_rules()}
    assert told["OncelogReplicaSilent"].count('topic!="__cluster_metadata"') == 2
    assert told["OncelogControllerSilent"].count('{topic="__cluster_metadata"}') == 2
    assert "broker" not in told["OncelogControllerSilent"]


def test_a_gateway_that_does_not_serve_is_told_and_so_is_one_that_tells_nothing():
    told = {rule["alert"]: rule["expr"] for rule in alert_rules()}
    gauge = "ray_oncelog_gateway_not_serving"
    assert told["OncelogGatewayNotServing"] == f"max by (broker) ({gauge}) > 0"
    assert told["OncelogGatewaySilent"] == (
        f"max by (broker) (max_over_time({gauge}[1h])) unless max by (broker) ({gauge})"
    )
