"""What is patched of huggingface_hub, all of it in this file.

Each entry says what it is, why it is needed and in which version it was seen;
tests/compat/test_hub_compat.py fails where huggingface_hub changes one.
"""

from __future__ import annotations


def switch_hub_telemetry_off() -> None:
    """Switch telemetry off in a huggingface_hub that has been imported already.

    It reads its switch from the environment when it is imported, and there is no other public one.
    It looks at the constant with each request. (huggingface_hub 1, 2.4)
    """
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
