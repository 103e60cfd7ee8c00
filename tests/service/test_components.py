"""What an installation has, for who writes documents."""

from __future__ import annotations

import pytest

from tidemill.model.schema_change import SchemaChangeKind
from tidemill.service.components import ComponentInfo, list_components


@pytest.mark.parametrize("each", [c for c in list_components() if c.installed], ids=lambda c: f"{c.family}/{c.name}")
def test_each_component_says_in_a_sentence_what_it_is_for(each: ComponentInfo) -> None:
    assert 30 < len(each.about) < 500, each.about
    assert "\n" not in each.about
    assert "invariant" not in each.about.lower(), "for who writes documents, not for who reads the code"


@pytest.mark.parametrize("each", [c for c in list_components("sinks") if c.installed], ids=lambda c: c.name)
def test_each_sink_says_what_it_can_do(each: ComponentInfo) -> None:
    assert each.capabilities is not None
    assert len(each.capabilities.delivery) > 10
    assert set(each.capabilities.schema_changes) <= {kind.value for kind in SchemaChangeKind}
    assert each.formats or each.capabilities.schema_changes or each.name == "blackhole", "events or tables"


def test_what_is_no_sink_has_no_capabilities_of_one() -> None:
    assert [c for c in list_components() if c.capabilities and c.family != "sinks"] == []
