"""That the workers of a run share its simulators out, and do not each build all of them."""

from __future__ import annotations

import pytest

NAME = "groups"


@pytest.mark.xdist_group(NAME)
def test_what_is_of_one_group_goes_to_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist groups by what it writes behind the name of a test, which pytest 9.2 does not let it."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not a worker of a run with --dist loadgroup")
    assert request.node.nodeid.endswith(f"@{NAME}"), f"pytest {pytest.__version__} loses groups: see pyproject.toml"
