"""What is patched of huggingface_hub is there, and does the same."""

from __future__ import annotations

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers

from tinyattn.compat.hub_compat import switch_hub_telemetry_off
from tinyattn.telemetry import switch_telemetry_off


def told() -> str:
    """What a request to the hub says of this machine."""
    return build_hf_headers(library_name="x", token=False)["user-agent"]


def test_requests_tell_no_more_of_this_machine_once_telemetry_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    version = torch.__version__.partition("+")[0]
    assert version in told()
    switch_hub_telemetry_off()
    assert version not in told()


def test_it_is_switched_off_unless_the_user_has_set_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    switch_telemetry_off()
    assert not constants.HF_HUB_DISABLE_TELEMETRY
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY")
    switch_telemetry_off()
    assert constants.HF_HUB_DISABLE_TELEMETRY
