"""What lies beside a PLM's weights, in its folder or on the hub: looked at, never applied or run.

transformers would apply an adapter of peft that was left there, ask on the terminal whether to run
code that the files name, and load kernels for attention from the hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig

from tinyattn.errors import PlmError
from tinyattn.plms.transformers_compat import choose_plain_attention

ADAPTER_CONFIG = "adapter_config.json"
_CODE_OF = {
    "config.json": ("AutoConfig", "AutoModel", "AutoTokenizer"),
    "tokenizer_config.json": ("AutoConfig", "AutoTokenizer"),
}
"""Files that may name code (`auto_map`), and the beginnings of what they name it for."""
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def beside(source: Mapping[str, Any], file: str) -> Path | None:
    """Return a file of a PLM's folder or repository; None: it is not there, or not to be had.

    Args:
        source: arguments of `from_pretrained` that say where the PLM is.
        file: name of the file.
    """
    place = source["pretrained_model_name_or_path"]
    if Path(place).is_dir():
        return path if (path := Path(place) / file).is_file() else None
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                place, file, local_files_only=source["local_files_only"]
            )
        )
    except (OSError, ValueError):  # all errors of the hub are one of these
        return None


def _fields(path: Path | None) -> dict[str, Any]:
    """Return the fields of a JSON file; none where it cannot be read: its reader says so."""
    try:
        found = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def refuse_adapter_alone(source: Mapping[str, Any], name: str) -> None:
    """Refuse a place that holds an adapter and no weights that it could be applied to.

    Raises:
        PlmError: so it is; the message names the adapter's PLM.
    """
    place = source["pretrained_model_name_or_path"]
    if (path := beside(source, ADAPTER_CONFIG)) is None or _has_weights(place):
        return
    fields = _fields(path)
    card = fields.get("plm")  # an adapter folder of tinyattn
    base = card.get("name") if isinstance(card, dict) else fields.get("base_model_name_or_path")
    made_for = f", made for the PLM {base!r}" if isinstance(base, str) and base else ""
    raise PlmError(
        f"PLM '{name}' cannot be loaded: it is an adapter alone{made_for} ({ADAPTER_CONFIG} "
        "without weights of a PLM); set plm= to the PLM it was made for, or merge it (in peft "
        "merge_and_unload, then save_pretrained) and name the folder of the merged model"
    )


def _has_weights(place: str) -> bool:
    """Whether a folder, or what is in the cache of a repository, has a PLM's weights."""
    if Path(place).is_dir():
        return any(path for form in _WEIGHTS for path in Path(place).glob(form))
    files = (form.replace("*", "") + end for form in _WEIGHTS for end in ("", ".index.json"))
    return any(isinstance(huggingface_hub.try_to_load_from_cache(place, f), str) for f in files)


def adapter_notes(source: Mapping[str, Any], name: str) -> list[str]:
    """Return the remark on an adapter that lies beside the weights, if there is one."""
    if beside(source, ADAPTER_CONFIG) is None:
        return []
    return [
        f"PLM '{name}': an adapter lies beside its weights ({ADAPTER_CONFIG}) and is not applied; "
        "loaded are the weights alone"
    ]


def code_notes(source: Mapping[str, Any], name: str) -> list[str]:
    """Return a remark on each file that names code for which transformers has classes of that name.

    Raises:
        PlmError: code is named that transformers has no classes for, which is never run.
    """
    kind, notes = _fields(beside(source, "config.json")).get("model_type"), []
    known = CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else None
    if known is not None and not known.__module__.startswith("transformers."):
        return []  # a plugin has given transformers its own classes, which come first
    for file, starts in _CODE_OF.items():
        named = _code(_fields(beside(source, file)).get("auto_map"), starts)
        if not named:
            continue
        listed = ", ".join(named)
        classes = (reference.rpartition(".")[2] for reference in named)
        if known is None or not all(hasattr(transformers, one) for one in classes):
            raise PlmError(
                f"PLM '{name}' cannot be loaded: its {file} names code of its own ({listed}), "
                "which is never run here; use a PLM whose family transformers has itself, or, "
                "where transformers' own classes read these weights rightly, a copy without "
                f"auto_map in its {file}"
            )
        notes.append(
            f"PLM '{name}': its {file} names code of its own ({listed}), which is not run; "
            "transformers' own classes of that name are used"
        )
    return notes


def _code(auto_map: Any, starts: tuple[str, ...]) -> list[str]:
    """Return the classes, as `module.Class`, that an `auto_map` names for what begins so."""
    if isinstance(auto_map, list | tuple):  # of a tokenizer, as old files have it
        auto_map = {"AutoTokenizer": auto_map}
    if not isinstance(auto_map, dict):
        return []
    found: dict[str, None] = {}
    for key, value in auto_map.items():
        if key.startswith(starts):
            values = value if isinstance(value, list | tuple) else [value]
            found |= dict.fromkeys(str(one) for one in values if one is not None)
    return list(found)


def plain(config: PretrainedConfig) -> PretrainedConfig:
    """Return a configuration without what it says of other things than the PLM's function.

    That is in which form it answers, by which kernel attention is computed, and, where the
    embeddings have no such row, the padding token: padded places are masked.
    """
    wanted: Any = config
    wanted.return_dict, wanted.output_hidden_states = True, False
    choose_plain_attention(config)
    if getattr(wanted, "output_attentions", False):
        wanted.output_attentions = False
    rows, pad = getattr(wanted, "vocab_size", None), getattr(wanted, "pad_token_id", None)
    if isinstance(rows, int) and isinstance(pad, int) and not 0 <= pad < rows:
        wanted.pad_token_id = None
    return config
