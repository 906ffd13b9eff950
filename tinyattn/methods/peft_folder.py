"""A folder that peft loads, with what one of its tuners trained here.

`PeftModel.from_pretrained(base, folder)`, with the base model as `AutoModel` gives it, has the
hidden states of the adapter; the classifier is in the adapter folder around it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch

PEFT_FOLDER = "peft"
"""Name of this folder in an adapter folder."""
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


def limited(config: Any, base: Any, paths: Sequence[str]) -> Any:
    """Return a tuner's config that changes these modules and no others.

    Args:
        config: of a tuner.
        base: a PLM in which the tuner has changed these modules.
        paths: of modules in it.
    """
    found = copy.copy(config)
    found.target_modules = sorted(paths)
    if hasattr(found, "feedforward_modules"):  # IA3 rescales their input, not their output
        found.feedforward_modules = sorted(
            path for path in paths if base.get_submodule(path).is_feedforward
        )
    return found


def write_peft_folder(by_peft: Any, paths: Sequence[str], folder: Path) -> None:
    """Write peft's files for the changed modules of a peft model.

    Args:
        by_peft: a `peft.PeftModel`.
        paths: modules of the base model that the trial trained; none with a prompt.
        folder: a folder that does not exist yet.

    Raises:
        OSError: it cannot be written.
    """
    from peft import get_peft_model_state_dict

    config = copy.copy(by_peft.active_peft_config)
    if not config.is_prompt_learning:
        config = limited(config, by_peft.get_base_model(), paths)
    config.inference_mode = True
    weights = get_peft_model_state_dict(by_peft, save_embedding_layers=False)
    wanted = tuple(f"{_PREFIX}{path}." for path in paths)
    kept = {
        name: weight.detach().cpu().contiguous().clone()
        for name, weight in weights.items()
        if name.startswith(wanted) or not name.startswith(_PREFIX)  # what modules share, as VeRA's
    }
    folder.mkdir()
    config.save_pretrained(folder)
    safetensors.torch.save_file(kept, folder / _WEIGHTS, metadata={"format": "pt"})
