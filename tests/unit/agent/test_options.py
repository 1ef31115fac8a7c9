"""What the agent's command line takes."""

import pytest

from deploy.cli.agent_options import xids
from deploy.cli.errors import InputError


def test_xids_are_numbers_with_commas():
    assert xids("13, 31") == {13, 31}
    assert xids("") == frozenset()


@pytest.mark.parametrize("text", ["13,,31", "13,", "x", "-1", "1e3", "99999999"])
def test_anything_else_is_refused_with_the_fix(text):
    with pytest.raises(InputError, match="use XID numbers with commas, such as 13,31"):
        xids(text)
