"""What an installation has, for who writes documents."""

from __future__ import annotations

import pytest

from tidemill.service.components import ComponentInfo, list_components


@pytest.mark.parametrize("each", [c for c in list_components() if c.installed], ids=lambda c: f"{c.family}/{c.name}")
def test_each_component_says_in_a_sentence_what_it_is_for(each: ComponentInfo) -> None:
    assert 30 < len(each.about) < 500, each.about
    assert "\n" not in each.about
    assert "invariant" not in each.about.lower(), "for who writes documents, not for who reads the code"
