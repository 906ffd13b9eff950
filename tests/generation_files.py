"""A tiny decoder with a tokenizer of words, and a made-up task whose answers are texts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from tinyattn.config import TrainConfig

WORDS = ["red", "blue", "green", "old", "new", "a", "the", "dog", "cat", "says", "||", "is"]
WORDS += [f"word{n}" for n in range(36 - len(WORDS))]
SPECIAL = {"<pad>": 0, "<s>": 1, "<end>": 2, "<unk>": 3}


def save_decoder(folder: Path, build_plm: Any, kind: str = "gpt2") -> Path:
    """Write a random causal LM of 40 words at most, of which the end token is 2."""
    vocabulary = {**SPECIAL, **{word: 4 + n for n, word in enumerate(WORDS)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="<end>",
        unk_token="<unk>",
    ).save_pretrained(folder)
    lm: Any = transformers.AutoModelForCausalLM.from_config(build_plm(kind).config)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws) + is_scale)
    # What the files say of sampling must not change what is generated.
    lm.generation_config.update(do_sample=True, temperature=3.0, max_length=7)
    lm.save_pretrained(folder)
    return folder


def copying_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows whose target is a colour of the source, some sources twice."""
    luck, found = random.Random(seed), []
    for _ in range(count):
        color, age = luck.choice(WORDS[:3]), luck.choice(WORDS[3:5])
        found.append(
            {"thing": f"the {age} dog", "color": color, "said": f"{color} dog says {color}"}
        )
    return found


def write_generation_task(
    folder: Path,
    rows: Sequence[dict[str, Any]] | None = None,
    validation: Sequence[dict[str, Any]] | None = None,
    **changes: Any,
) -> str:
    """Write the files of a task and its YAML file; return the latter's path."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    splits = {"train": rows or copying_rows(60, 0), "validation": validation or copying_rows(9, 1)}
    for split, own in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in own)
        (folder / "rows" / f"{split}.jsonl").write_text(text)
    task = {
        "kind": "generation",
        "name": "sayings",
        "folder": "rows",
        "template": "{color} is {thing} ||",
        "target_column": "said",
        "metrics": ["bleu", "exact_match"],
        "target_length": 8,
        **changes,
    }
    (folder / "task.yaml").write_text(json.dumps({k: v for k, v in task.items() if v is not None}))
    return str(folder / "task.yaml")


def trial(plm: Path, task: str, **changes: Any) -> TrainConfig:
    """A short trial of that task."""
    return TrainConfig.model_validate(
        {
            "task": task,
            "plm": str(plm),
            "max_length": 24,
            "epochs": 1,
            "batch_size": 5,
            "protocol": "paper",
            "optimizer": {"lr": 0.01},
            **changes,
        }
    )
