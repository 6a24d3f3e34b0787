"""The assertions about refusals fail where a name is missing."""

import warnings

import pytest
from refusals import refused, warned


def test_a_name_that_is_missing_or_not_told_at_all_fails():
    with pytest.raises(AssertionError, match="floor"), refused(ValueError, "floor"):
        raise ValueError("rate=2")
    with pytest.raises(AssertionError, match="floor"), warned("floor"):
        warnings.warn("rate=2", UserWarning, stacklevel=1)
