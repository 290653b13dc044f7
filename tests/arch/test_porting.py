"""The table of confluent-kafka's methods: none is left out, and what stands beside them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import oncelog

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "porting.md"

# Of confluent-kafka 2.16.1: names of its classes that do not begin with an underscore.
METHODS = {
    "Producer": """abort_transaction begin_transaction close cluster_id commit_transaction flush
        init_transactions list_topics poll produce produce_batch purge send_offsets_to_transaction
        set_sasl_credentials""",
    "Consumer": """assign assignment close cluster_id commit committed consume
        consumer_group_metadata get_watermark_offsets incremental_assign incremental_unassign
        list_topics memberid offsets_for_times pause poll position resume seek set_sasl_credentials
        store_offsets subscribe unassign unsubscribe""",
    "AdminClient": """alter_configs alter_consumer_group_offsets alter_user_scram_credentials
        cluster_id create_acls create_partitions create_topics delete_acls delete_consumer_groups
        delete_records delete_topics describe_acls describe_cluster describe_configs
        describe_consumer_groups describe_topics describe_user_scram_credentials elect_leaders
        incremental_alter_configs list_consumer_group_offsets list_consumer_groups list_groups
        list_offsets list_topics poll set_sasl_credentials""",
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_row_and_what_stands_beside_it_exists(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"### {name}\n")[1].split("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*)\|$", section, re.MULTILINE)
    assert [method for method, _, _ in rows] == METHODS[name].split()
    for method, ours, remark in rows:
        if ours == "none":
            assert remark.strip(), f"{method}: why not?"
        for text in re.findall(r"`(\w+\.\w+)`", f"{ours} {remark}"):
            owner, _, attribute = text.partition(".")
            assert callable(getattr(getattr(oncelog, owner), attribute)), text
