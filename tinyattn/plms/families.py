"""Families of PLMs: where the attention of a layer is, by `config.model_type`.

The PLM's own files stay untouched: adapters/placement.py hooks the modules named here. A family of
one's own is one entry:

    register_family(
        "mymodel", Family(layers="encoder.layer.*", attention="attn", projection="attn.o")
    )

A process has one registry, FAMILIES, since a plugin is imported without an object to add to: it is
all that a function of this module asks, unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from tinyattn.config import PoolingKind
from tinyattn.errors import PlmError, did_you_mean
from tinyattn.plugins import load_installed


@dataclass(frozen=True)
class Family:
    """Where a PLM family has its layers and attention: module paths in base model and layer."""

    layers: str
    """Path of the list of layers in the base model; `*` stands for every entry of a list."""
    attention: str
    """In a layer: the attention module, whose first argument is h."""
    projection: str
    """In a layer: attention's output projection, whose input is the concatenated heads."""
    after: str | None = None
    """In a layer: the module whose output is z; None: `attention` itself."""
    pre_norm: bool = False
    """Whether attention's output still lacks the residual: then z is attention(h) + layer input."""
    causal: bool = False
    """Whether a position may only see earlier ones (decoders)."""
    positions_after_padding: bool = False
    """Whether position ids start at the padding token's id + 1 instead of 0."""
    pair_marks: bool = False
    """Whether two end tokens, `config.eos_token_id`, stand between the texts of a pair."""
    begins: str = ""
    """In the base model: the module whose call begins a pass, where a language model calls that
    instead of the base model; empty: the base model itself."""
    encoder_only: bool = False
    """Whether of an encoder and a decoder the encoder alone is loaded (T5)."""
    pooling: PoolingKind = "first"
    """How rows are pooled unless a trial says otherwise. Where it is not `first`, no token stands
    for its row, and `first` is refused."""
    feed_forward: str | None = None
    """In a layer: the feed-forward net's output projection; None: unknown, so that no bottleneck
    can go before the residual there."""
    norms: tuple[str, str] | tuple[()] | None = None
    """In a layer of a post-LN family: the norm of attention's output with its residual, and that of
    the feed-forward net's; None: unknown; (): no norm follows a residual, as with `pre_norm`."""
    calls: Callable[[Any, list[nn.Module]], list[nn.Module]] | None = None
    """Returns the layers in the order of their calls, for PLMs that call a layer several times."""

    @property
    def normalises_first(self) -> bool:
        """Whether no norm follows a residual: norms are before attention and feed-forward nets."""
        return self.pre_norm or self.norms == ()


def _albert_calls(plm: Any, layers: list[nn.Module]) -> list[nn.Module]:
    """Return ALBERT's layers in call order: step i calls all inner layers of group i/(L/G)."""
    config = plm.config
    per_call = config.num_hidden_layers / config.num_hidden_groups
    inner = config.inner_group_num
    groups = [layers[g * inner : (g + 1) * inner] for g in range(config.num_hidden_groups)]
    return [layer for i in range(config.num_hidden_layers) for layer in groups[int(i / per_call)]]


_BERT = Family(
    layers="encoder.layer.*",
    attention="attention",
    projection="attention.output.dense",
    feed_forward="output.dense",
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
)
_ROBERTA = dataclasses.replace(_BERT, positions_after_padding=True, pair_marks=True)
_LLAMA = Family(
    layers="layers.*",
    attention="self_attn",
    projection="self_attn.o_proj",
    feed_forward="mlp.down_proj",
    pre_norm=True,
    causal=True,
)
# Attention's output is normalised once more before the residual is added.
_GEMMA_2 = dataclasses.replace(_LLAMA, after="post_attention_layernorm")

# No token of T5's stands for its row: a text ends in </s>, which pre-training asks nothing of.
_T5 = Family(
    layers="encoder.block.*",
    attention="layer.0.SelfAttention",
    projection="layer.0.SelfAttention.o",
    after="layer.0",
    feed_forward="layer.1.DenseReluDense.wo",
    norms=(),
    encoder_only=True,
    pooling="mean",
)

_BUILT_IN = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _BERT,
    "camembert": _ROBERTA,
    "deberta": _BERT,
    "deberta-v2": _BERT,
    "mpnet": dataclasses.replace(
        _ROBERTA, projection="attention.attn.o", norms=("attention.LayerNorm", "output.LayerNorm")
    ),
    "modernbert": Family(
        layers="layers.*",
        attention="attn",
        projection="attn.Wo",
        pre_norm=True,
        feed_forward="mlp.Wo",
    ),
    "distilbert": Family(
        layers="transformer.layer.*",
        attention="attention",
        projection="attention.out_lin",
        after="sa_layer_norm",
        feed_forward="ffn.lin2",
        norms=("sa_layer_norm", "output_layer_norm"),
    ),
    "albert": Family(
        layers="encoder.albert_layer_groups.*.albert_layers.*",
        attention="attention",
        projection="attention.dense",
        feed_forward="ffn_output",
        norms=("attention.LayerNorm", "full_layer_layer_norm"),
        calls=_albert_calls,
    ),
    "gpt2": Family(
        layers="h.*",
        attention="attn",
        projection="attn.c_proj",
        pre_norm=True,
        causal=True,
        feed_forward="mlp.c_proj",
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "phi3": _LLAMA,
    "phi": dataclasses.replace(_LLAMA, projection="self_attn.dense", feed_forward="mlp.fc2"),
    "gemma": _LLAMA,
    "gemma2": _GEMMA_2,
    "gemma3_text": _GEMMA_2,
    "opt": dataclasses.replace(
        _LLAMA,
        layers="decoder.layers.*",
        projection="self_attn.out_proj",
        begins="decoder",
        feed_forward="fc2",
    ),
    "gpt_neox": dataclasses.replace(
        _LLAMA,
        attention="attention",
        projection="attention.dense",
        feed_forward="mlp.dense_4h_to_h",
    ),
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
}


class Families(Mapping[str, Family]):
    """A registry of PLM families by `config.model_type`.

    Args:
        entries: what it begins with.
        load: called once, before the registry is first read or changed: it imports the plugins of
            installed packages, which add families of their own. So these may replace what the
            registry begins with, and what a user names later replaces theirs. None: no plugins.
    """

    def __init__(
        self, entries: Mapping[str, Family], load: Callable[[], None] | None = None
    ) -> None:
        self._entries = dict(entries)
        self._load = load
        self._loading = threading.RLock()  # a plugin adds to the registry while it is imported

    def add(self, model_type: str, family: Family) -> None:
        """Add a family, replacing an entry of that name."""
        self._load_once()
        self._entries[model_type] = family

    def of(self, plm: PreTrainedModel) -> Family:
        """Return the family of a PLM.

        Raises:
            PlmError: it is unknown.
        """
        model_type = plm.config.model_type
        if model_type not in self:
            raise PlmError(
                f"PLM family '{model_type}' is unknown{did_you_mean(model_type, self)}; known are "
                f"{', '.join(sorted(self))}; a module that calls tinyattn.register_family adds "
                "one: name it with --import"
            )
        return self[model_type]

    @contextlib.contextmanager
    def changes_undone(self) -> Iterator[None]:
        """Undo after the block what it adds: for tests, whose processes have one registry too."""
        self._load_once()
        before = dict(self._entries)
        try:
            yield
        finally:
            self._entries = before

    def __getitem__(self, model_type: str) -> Family:
        self._load_once()
        return self._entries[model_type]

    def __iter__(self) -> Iterator[str]:
        self._load_once()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load_once()
        return len(self._entries)

    def _load_once(self) -> None:
        with self._loading:
            load, self._load = self._load, None
            if load is None:
                return
            try:
                load()
            except BaseException:
                self._load = load  # it fails again for who asks next, and says why
                raise


FAMILIES = Families(_BUILT_IN, load_installed)
"""The registry of this process, to which plugins add by `register_family`."""


def register_family(model_type: str, family: Family) -> None:
    """Add a PLM family under its `config.model_type`, replacing an entry of that name."""
    FAMILIES.add(model_type, family)


def family_of(plm: PreTrainedModel) -> Family:
    """Return the family of a PLM; PlmError if it is unknown."""
    return FAMILIES.of(plm)


def first_position(config: PretrainedConfig, family: Family) -> int:
    """Return the position id of a row's first token.

    Raises:
        PlmError: the family counts from a padding token that the PLM does not have.
    """
    if not family.positions_after_padding:
        return 0
    rows, pad = getattr(config, "vocab_size", None), getattr(config, "pad_token_id", None)
    if not isinstance(pad, int) or pad < 0 or (isinstance(rows, int) and pad >= rows):
        most = f"0 to {rows - 1:,}" if isinstance(rows, int) else "a token's id"
        raise PlmError(
            f"PLM '{config.name_or_path or config.model_type}': got pad_token_id {pad} in its "
            f"configuration; expected {most}, as a {config.model_type} PLM counts positions from "
            "it; set it in config.json to the id that its tokenizer pads with"
        )
    return pad + 1


def pooling_of(plm: PreTrainedModel, wanted: PoolingKind | None) -> PoolingKind:
    """Return how rows are pooled on a PLM: as wanted; None: as its family does.

    Raises:
        PlmError: the PLM has no token that stands for its row, and `first` is wanted.
    """
    own = family_of(plm).pooling
    if wanted == "first" != own:
        raise PlmError(
            f"pooling is first, but no token of a {plm.config.model_type} PLM stands for its row; "
            f"allowed are mean, attention and hierarchical (without pooling it is {own})"
        )
    return wanted or own


def layer_calls(plm: PreTrainedModel) -> list[nn.Module]:
    """Return the base model's layers in call order; ALBERT's shared layer appears L times."""
    family: Family = family_of(plm)
    base: Any = plm.base_model
    found: list[nn.Module] = [base]
    for part in family.layers.split("."):
        if part == "*":
            found = [child for module in found for child in module.children()]
        else:
            found = [submodule(module, part, base) for module in found]
    return family.calls(base, found) if family.calls else found


def submodule(module: nn.Module, path: str, plm: nn.Module) -> nn.Module:
    """Return the module at `path` below a module of a PLM; PlmError if there is none."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        raise PlmError(
            f"{type(plm).__name__} has no '{path}' in its {type(module).__name__}: its family's "
            "entry in tinyattn.plms.families.FAMILIES does not describe it"
        ) from None


def select_layers(layers: str | Sequence[int], total: int) -> list[int]:
    """Turn 'all', 'none', 'top-N' or indices into sorted indices below `total`.

    Raises:
        PlmError: an index or N is larger than the PLM has layers.
    """
    if layers == "all":
        return list(range(total))
    if layers == "none":
        return []
    if isinstance(layers, str):
        count = int(layers.removeprefix("top-"))
        chosen = list(range(total - count, total))
    else:
        chosen = sorted(layers)
    if chosen[0] < 0 or chosen[-1] >= total:
        raise PlmError(
            f"adapter.layers is {layers}, but the PLM has {total} layers (0-{total - 1})"
        )
    return chosen
