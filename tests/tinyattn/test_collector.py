"""What imports make is not looked at by Python's garbage collector."""

from __future__ import annotations

import gc

import pytest

from tinyattn.collector import imports_uncollected


def test_it_is_off_within_and_what_was_made_is_never_looked_at_again() -> None:
    try:
        with imports_uncollected():
            assert not gc.isenabled()
            made: list[list[object]] = [[]]
            made.append(made)  # a cycle, as modules are
        assert gc.isenabled()
        assert not any(each is made for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_it_is_as_before_whatever_happens() -> None:
    gc.disable()
    try:
        with imports_uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ImportError), imports_uncollected():
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()
