"""What a trial is: AdapterConfig, OptimizerConfig, TrainConfig, and the dotted-override grammar.

Configs are data. They are read from YAML, checked by pydantic, and stop at the builders: modules
such as TinyAttention take plain numbers. People, the searcher and the finalizer all change a
config through `with_overrides({"optimizer.lr": 3e-4})`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    model_serializer,
    model_validator,
)

from tinyattn.errors import ConfigError, did_you_mean
from tinyattn.files.yaml_files import parse_yaml


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def with_overrides(self, overrides: Mapping[str, Any], source: str = "override") -> Self:
        """Return a copy with dotted keys replaced, e.g. `{"optimizer.lr": 3e-4}`.

        Raises:
            ConfigError: a key is unknown or a value is not allowed.
        """
        data = self.model_dump(mode="json")
        set_all(data, overrides)
        return build(type(self), data, source)


def _parse_layers(value: Any) -> Any:
    """Accept 'all', 'none', 'top-6' or a list of layer indices."""
    if isinstance(value, str):
        if value in ("all", "none") or re.fullmatch(r"top-[1-9][0-9]{0,4}", value):
            return value
    elif (
        isinstance(value, list | tuple) and value and all(type(i) is int and i >= 0 for i in value)
    ):
        return tuple(sorted(set(value)))
    raise ValueError("allowed are all, none, top-N (as in top-6) or a list such as [6, 7, 8]")


Layers = Annotated[str | tuple[int, ...], BeforeValidator(_parse_layers)]


class AdapterConfig(StrictModel):
    """Shape and place of the tiny-attention adapters of one trial."""

    method: Literal["tiny"] = "tiny"
    """What is trained beside the frozen PLM: tiny attention."""
    num_heads: int = Field(1, ge=1, le=256)
    """M, attention heads per adapter."""
    head_dim: int = Field(1, ge=1, le=1024)
    """D, dimension of each head's query, key and value (the paper: 1)."""
    norm: Literal["none", "plain", "affine"] = "plain"
    """LayerNorm before the projections: none, without affine parameters, or with them."""
    bias: bool = True
    """Query bias [M, D] and output bias [H]; key and value biases would add no function."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Probability of dropping an attention weight in training."""
    placement: Literal["sequential", "parallel", "parallel_heads"] = "sequential"
    """sequential: after attention (the paper); parallel: beside it (the authors' code);
    parallel_heads: beside the heads, added before attention's output projection (He et al.)."""
    layers: Layers = "all"
    """PLM layers that get an adapter: all, none (classifier alone), top-N, or a list of indices."""
    share_layers: bool = False
    """One adapter used at every layer (the authors' choice for ALBERT)."""

    @model_serializer(mode="wrap")
    def _as_first(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the method out, as when there was one: what is stored, hashed, sealed or compared
        stays what it was."""
        found: dict[str, Any] = written(self)
        found.pop("method", None)
        return found


class BottleneckConfig(StrictModel):
    """Bottleneck adapters (Houlsby et al., ICML 2019), where tiny attention has its place.

    A linear one is the control without context: at r = 2 and without biases it has the 4H
    parameters a layer of one head, and sees each position alone.
    """

    method: Literal["bottleneck"]
    """What is trained: bottlenecks."""
    r: int = Field(2, ge=1, le=65_536)
    """Width of the bottleneck."""
    activation: Literal["none", "relu", "gelu"] = "none"
    """Function between the two projections."""
    norm: Literal["none", "plain", "affine"] = "none"
    """LayerNorm before the projections: none, without affine parameters, or with them."""
    bias: bool = False
    """Bias of each projection."""
    layers: Layers = "all"
    """As for tiny attention."""
    placement: Literal["sequential", "parallel", "parallel_heads"] = "sequential"
    """As for tiny attention."""


class VariantConfig(StrictModel):
    """Variants of tiny attention: another score, or another choice of what is attended to."""

    method: Literal["variant"]
    """What is trained: a variant of tiny attention."""
    score: Literal["dot", "additive", "rbf", "aggregation"] = "dot"
    """Score of a key: dot product (the paper), a·tanh(q + k + b), −τ|q − k|², or u·tanh(k + b),
    which is the same for every query."""
    window: int | None = Field(None, ge=0, le=1_000_000)
    """Most positions between a query and a key; None: no limit."""
    share_kv: bool = False
    """Whether all heads share keys and values (multi-query attention)."""
    null_key: bool = False
    """A learned key and value beside those of the row, to attend to nothing of it."""
    gate: bool = False
    """A factor of the output that starts at 0."""
    num_heads: int = Field(1, ge=1, le=256)
    """As for tiny attention, as all that follows."""
    head_dim: int = Field(1, ge=1, le=1024)
    """D, dimension of each head's query, key and value."""
    norm: Literal["none", "plain", "affine"] = "plain"
    """LayerNorm before the projections."""
    bias: bool = True
    """Query bias, where the score has no b of its own, and output bias."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Probability of dropping an attention weight in training."""
    placement: Literal["sequential", "parallel", "parallel_heads"] = "sequential"
    """Where the adapter acts."""
    layers: Layers = "all"
    """PLM layers that get one."""


class UnfrozenConfig(StrictModel):
    """Weights of the PLM itself that are trained, as a copy of the trial's own."""

    method: Literal["bitfit", "full"]
    """bitfit: all biases (Ben Zaken et al., ACL 2022); full: all weights, full fine-tuning."""
    layers: Layers = "all"
    """PLM layers in which they are trained; embeddings belong to `all`."""

    @property
    def placement(self) -> str:
        """Any: it acts where the PLM's own modules are."""
        return "sequential"


TUNERS: dict[str, frozenset[str]] = {
    "LORA": frozenset({"r", "lora_alpha", "target_modules", "use_rslora", "use_dora"}),
    "IA3": frozenset({"target_modules", "feedforward_modules"}),
    "LN_TUNING": frozenset({"target_modules"}),
    "HRA": frozenset({"r", "apply_GS", "target_modules"}),
    "MISS": frozenset({"r", "target_modules"}),
    "VERA": frozenset({"r", "target_modules", "projection_prng_key", "d_initial"}),
    "ROAD": frozenset({"variant", "group_size", "target_modules"}),
    "LOHA": frozenset({"r", "alpha", "target_modules"}),
    "LOKR": frozenset({"r", "alpha", "target_modules"}),
    "OFT": frozenset({"oft_block_size", "target_modules"}),
    "BOFT": frozenset(
        {"boft_block_size", "boft_block_num", "boft_n_butterfly_factor", "target_modules"}
    ),
    "FOURIERFT": frozenset({"n_frequency", "scaling", "random_loc_seed", "target_modules"}),
    "WAVEFT": frozenset({"n_frequency", "scaling", "random_loc_seed", "target_modules"}),
    "C3A": frozenset({"block_size", "target_modules"}),
    "RANDLORA": frozenset({"r", "projection_prng_key", "target_modules"}),
    "VBLORA": frozenset({"r", "num_vectors", "vector_length", "topk", "target_modules"}),
    "GRALORA": frozenset({"r", "gralora_k", "alpha", "target_modules"}),
    "DELORA": frozenset({"r", "delora_lambda", "target_modules"}),
    "HIRA": frozenset({"r", "target_modules"}),
    "PEANUT": frozenset({"r", "depth", "act_fn", "scaling", "target_modules"}),
    "BEFT": frozenset({"target_modules"}),
    "UNILORA": frozenset({"r", "theta_d_length", "proj_seed", "target_modules"}),
    "GLORA": frozenset({"r", "target_modules"}),
    "DEFT": frozenset({"r", "decomposition_method", "alpha", "para", "target_modules"}),
    "OSF": frozenset({"effective_rank", "target_modules"}),
}
"""{tuner of peft: its options that may be set}. A tuner is here once the table of
tests/tinyattn/test_peft.py has it."""


_NEEDS_MORE = "it needs another PLM, or several tasks, in memory"
_CHANGES_ROWS = "it changes the rows that the PLM reads, not its modules"
_UNSAVED = "it computes with factors of the PLM's weights that another machine may find otherwise"
_UNCOUNTABLE = "its parameters cannot be counted without the PLM's weights"
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(("XLORA", "POLY", "CPT", "SHADOW", "CARTRIDGE"), _NEEDS_MORE),
    "MULTITASK_PROMPT_TUNING": _NEEDS_MORE,
    "LILY": "its mixture is the mean over all tokens of a batch: rows would change each other",
    "PVERA": "it draws at random in training",
    "ADALORA": "it hands out ranks in training",
    **dict.fromkeys(("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"), _CHANGES_ROWS),
    "ADAPTION_PROMPT": _CHANGES_ROWS,
    "TRAINABLE_TOKENS": "it trains words that are named one by one",
    **dict.fromkeys(("TINYLORA", "PSOFT", "SUPERTUNING"), _UNSAVED),
    **dict.fromkeys(("SHIRA", "FROD", "ADAMSS"), _UNCOUNTABLE),
}
"""{tuner of peft that is not offered: why}."""


MOST_RANK = 65_536
"""Largest rank or number of vectors of a tuner."""
_MOST = {"UNILORA": 256, "VERA": 4096, "RANDLORA": 4096}
"""The same of tuners that have as many fixed numbers as their rank says, which nobody counts."""
_MOST_DEPTH = 64


class PeftAdapter(StrictModel):
    """A tuner of the peft library, with its own options, as in `tuner: LORA, r: 1`."""

    model_config = ConfigDict(extra="allow")

    method: Literal["peft"]
    """What is trained: a tuner of peft."""
    tuner: str
    """Name of the tuner, as peft's PeftType has it."""
    layers: Layers = "all"
    """PLM layers in which it changes modules."""

    @property
    def placement(self) -> str:
        """Any: it acts where the PLM's own modules are."""
        return "sequential"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the tuner's config class that are set."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.tuner in LEFT_OUT:
            raise ValueError(
                f"tuner {self.tuner} is not offered: {LEFT_OUT[self.tuner]}; allowed are "
                f"{', '.join(TUNERS)}"
            )
        if self.tuner not in TUNERS:
            raise ValueError(
                f"tuner {self.tuner} came{did_you_mean(self.tuner, TUNERS)}; allowed are "
                f"{', '.join(TUNERS)}"
            )
        for option, value in self.options.items():
            is_size = isinstance(value, int) and not option.endswith(("seed", "key"))
            most = _MOST.get(self.tuner, MOST_RANK) if option == "r" else MOST_RANK
            most = _MOST_DEPTH if option == "depth" else most
            if is_size and value > most:
                raise ValueError(f"option {option}: {value} came, allowed are {most:,}")
            if option not in TUNERS[self.tuner]:
                raise ValueError(
                    f"option {option} came{did_you_mean(option, TUNERS[self.tuner])}; {self.tuner} "
                    f"takes {', '.join(sorted(TUNERS[self.tuner]))}"
                )
        return self


def method_name(adapter: BaseModel) -> str:
    """Return a method's name for tables: that of peft's tuner, or `bottleneck` and so on."""
    return str(getattr(adapter, "tuner", None) or getattr(adapter, "method", "tiny"))


METHODS: dict[str, type[StrictModel]] = {
    "tiny": AdapterConfig,
    "variant": VariantConfig,
    "bottleneck": BottleneckConfig,
    "bitfit": UnfrozenConfig,
    "full": UnfrozenConfig,
    "peft": PeftAdapter,
}
"""{method: the model of its settings}."""


def _with_known_method(value: Any) -> Any:
    method = _method_of(value)
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(
            f"method {shown(method)} came{did_you_mean(str(method), METHODS)}; allowed are "
            f"{', '.join(METHODS)}"
        )
    return value


def _method_of(value: Any) -> Any:
    """The method of settings, `tiny` where they name none."""
    if isinstance(value, Mapping):
        return value.get("method", "tiny")
    return getattr(value, "method", "tiny")


def _tag_of(value: Any) -> str:
    return METHODS[_method_of(value)].__name__


TAGS = {model.__name__: model for model in METHODS.values()}
"""Names that pydantic puts into the keys of its messages to say which method it means."""

AnyAdapter = Annotated[
    Annotated[AdapterConfig, Tag("AdapterConfig")]
    | Annotated[VariantConfig, Tag("VariantConfig")]
    | Annotated[BottleneckConfig, Tag("BottleneckConfig")]
    | Annotated[UnfrozenConfig, Tag("UnfrozenConfig")]
    | Annotated[PeftAdapter, Tag("PeftAdapter")],
    Discriminator(_tag_of),
    BeforeValidator(_with_known_method),
]
"""Settings of any method; `method` decides which keys there are."""


class OptimizerConfig(StrictModel):
    """How the adapter and classifier are trained."""

    name: Literal["adamw", "radam"] = "adamw"
    """Update rule."""
    lr: float = Field(1e-3, gt=0, le=10)
    """Peak learning rate."""
    weight_decay: float = Field(0.0, ge=0, le=10)
    """Decoupled weight decay."""
    decay_bias_and_norm: bool = True
    """Whether weight decay also applies to biases and LayerNorm parameters."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning-rate decay after warm-up."""
    warmup: float = Field(0.0, ge=0)
    """Warm-up: below 1 a share of all steps (0.1 = 10 %), rounded; from 1 on a number of steps,
    which must be less than training has."""
    max_grad_norm: float = Field(0.0, ge=0)
    """Clip the gradient's global norm to this; 0: no clipping."""

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ValueError(f"optimizer.warmup is {self.warmup}: from 1 on it counts whole steps")
        return self


class StartConfig(StrictModel):
    """Start from the weights of a trained adapter instead of fresh ones (used by the finalizer)."""

    adapter: str
    """Adapter folder to start from, or the URL of one in an object store; its one head is copied
    into `adapter.num_heads` heads."""
    noise: float = Field(0.01, ge=0, le=1)
    """σ of the zero-sum perturbation between heads, relative to each weight's own scale."""


class TrainConfig(StrictModel):
    """The complete configuration of one trial: task, PLM, adapter, optimizer, length, precision."""

    task: str
    """Task name (`rte`, `agreement`, ...) or path of a task's YAML file."""
    plm: str
    """`minilm`, a Hugging Face name such as `roberta-large`, or a folder."""
    protocol: Literal["paper", "heldout"] = "heldout"
    """paper: select on the official dev set, as the paper does; heldout: select on a split carved
    from train and keep dev for the report."""
    carve_version: Literal[1, 2] = 2
    """Version of carving: 2 keeps rows with similar texts together; 1, of sweeps begun before
    there were versions, only rows with identical texts."""
    token_version: Literal[1, 2] = 2
    """Version of tokenising: 2 has segments and separators for all PLMs, and leaves special tokens
    that stand in a text as text; 1, of sweeps begun before there were versions, does not."""
    adapter: AnyAdapter = AdapterConfig()
    """What is trained beside the frozen PLM: shape and place of the adapters."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How adapter and classifier are trained."""
    epochs: int = Field(20, ge=1, le=10_000)
    """Passes over the training rows."""
    batch_size: int = Field(16, ge=1, le=65_536)
    """Rows per optimizer step."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Rows per forward pass; gradients accumulate to batch_size. None: batch_size."""
    evaluate_every: int | None = Field(None, ge=1)
    """Optimizer steps between evaluations; None: twice an epoch."""
    max_length: int = Field(128, ge=8, le=1_000_000)
    """Tokens per row; longer rows are truncated."""
    max_train_rows: int | None = Field(None, ge=1)
    """Use a fixed random subset of this many training rows; None: all."""
    max_select_rows: int | None = Field(None, ge=1)
    """Select on a fixed random subset of this many of the rows that `heldout` carves; None: all.
    Few rows make short evaluations, and noisy ones. Rows left out are not trained on."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the frozen PLM; adapter and classifier are always fp32."""
    plm_dropout: bool = False
    """Whether the frozen PLM's own dropout is active in training (the paper: off)."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: what the ranks of a trial share out between them. 1: the optimizer's
    state; 2: gradients too; 3: the PLM's weights as well."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seeds initial weights, order of rows and dropout."""
    start: StartConfig | None = None
    """Start from a trained adapter; None: fresh weights."""

    @model_validator(mode="after")
    def _micro_fits(self) -> Self:
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"micro_batch_size is {self.micro_batch_size}, allowed is at most batch_size, "
                f"which is {self.batch_size}"
            )
        return self

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        if self.start is not None and not isinstance(self.adapter, AdapterConfig):
            raise ValueError(
                f"start came with adapter.method {self.adapter.method}, allowed is tiny, whose "
                "heads can be perturbed"
            )
        if self.zero_stage == 3 and isinstance(self.adapter, UnfrozenConfig | PeftAdapter):
            raise ValueError(
                f"zero_stage 3 came with adapter.method {self.adapter.method}, which needs the "
                "PLM's weights whole; allowed are 0, 1 and 2"
            )
        return self

    @model_validator(mode="after")
    def _carved(self) -> Self:
        if self.max_select_rows is not None and self.protocol == "paper":
            raise ValueError(
                "max_select_rows came with protocol paper, which selects on the whole dev set; "
                "leave it out, or set protocol=heldout"
            )
        return self

    @property
    def protocol_name(self) -> str:
        """The protocol's name in rankings, which are among scores on the same rows."""
        few = "" if self.max_select_rows is None else f"-{self.max_select_rows}"
        return f"{self.protocol}{few}"

    def identity(self, data_fingerprint: str, commit: str) -> str:
        """Return a hash of 16 hex digits of config, data and code, equal for equal trials."""
        content = json.dumps(self.model_dump(mode="json", exclude=unnamed(self)), sort_keys=True)
        return hashlib.sha256(f"{content}\n{data_fingerprint}\n{commit}".encode()).hexdigest()[:16]


MOST_FAULTS = 20
"""Most faults that one message lists."""

FIRST_VERSIONS = {"carve_version": 1, "token_version": 1}
"""Versions of rules that a stored configuration without these keys was made with."""


_LATER_KEYS: dict[str, Any] = {**FIRST_VERSIONS, "max_select_rows": None}
"""Keys that older files lack, with the values that they were made with."""


def unnamed(model: BaseModel) -> set[str]:
    """Return the later keys that have their first value, so that older files keep their hashes."""
    known = model.__class__.model_fields
    return {k for k, first in _LATER_KEYS.items() if k in known and getattr(model, k) == first}


def stored_config(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored TrainConfig data with versions added: first versions where it names none."""
    return {**_LATER_KEYS, **data}


Model = TypeVar("Model", bound=BaseModel)


def build(model: type[Model], data: Any, source: str) -> Model:
    """Build a pydantic model from data.

    Args:
        model: the pydantic class.
        data: what YAML or overrides gave.
        source: file name or other origin, the first part of each message.

    Raises:
        ConfigError: data do not fit the model; the message has a line for each fault.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: a mapping of keys is needed, what came is {shown(data)}")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        faults = error.errors()
        lines = [_fault(model, fault, data, source) for fault in faults[:MOST_FAULTS]]
        if len(faults) > MOST_FAULTS:
            lines.append(f"{source}: and {len(faults) - MOST_FAULTS} more")
        raise ConfigError("\n".join(lines)) from None


def _fault(model: type[BaseModel], fault: Any, data: Any, source: str) -> str:
    """Format a pydantic fault as `source: key: what came, what is allowed, did you mean`."""
    key = _key_of(fault["loc"], data)[:200]
    if fault["type"] == "extra_forbidden":
        allowed = _siblings(model, fault["loc"])
        word = str(fault["loc"][-1])
        known = f"; allowed are {', '.join(allowed)}" if allowed else ""
        hint = did_you_mean(word, allowed) or did_you_mean(word, dotted_keys(model))
        return f"{source}: {key}: unknown key{hint}{known}"
    if fault["type"] == "missing":
        return f"{source}: {key}: this key is required"
    message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "allowed is")
    message = message.partition(", unable to parse")[0]
    message = re.sub(r"\ba valid (?=[aeiou])", "an ", message).replace("a valid ", "a ")
    came = fault["input"]
    if fault["type"] == "too_short":
        message = f"allowed are {fault['ctx']['min_length']} or more entries"
    if isinstance(came, Mapping):
        if fault["type"] != "value_error":  # keys where a single value belongs
            return f"{source}: {key}: keys came, {message}"
        # A fault between keys: its message names them, but not always where they stand.
        named = not key or message.startswith(key.rpartition(".")[2])
        return f"{source}: {message}" if named else f"{source}: {key}: {message}"
    hint = ""
    if fault["type"] == "literal_error" and isinstance(came, str):
        hint = did_you_mean(came, re.findall(r"'([^']+)'", message))
    word = "nothing (null)" if came is None else shown(came)
    return f"{source}: {key}: {word} came, {message}{hint}"


def _key_of(location: Iterable[str | int], data: Any) -> str:
    """Return the dotted key of a pydantic location, as it stands in `data`.

    Pydantic adds the value of `type` where that decides which keys are allowed, as in
    `space.optimizer.lr.uniform.low`, which is written nowhere.
    """
    parts: list[str] = []
    for part in location:
        if isinstance(data, Mapping) and part not in data and part in (data.get("type"), *TAGS):
            continue
        parts.append(str(part))
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
    return ".".join(parts)


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return every dotted key of a model, as in `optimizer.lr`, in its order of definition."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        groups = _groups_of(field.annotation)
        for group in groups:
            keys += [key for key in dotted_keys(group, f"{prefix}{name}.") if key not in keys]
        keys += [] if groups else [prefix + name]
    if model is PeftAdapter:
        keys += sorted({f"{prefix}{option}" for options in TUNERS.values() for option in options})
    return keys


def _groups_of(kind: Any) -> list[type[BaseModel]]:
    """Return the models that a field may hold."""
    if get_origin(kind) is tuple:
        return []
    options = [kind, *get_args(kind)]
    bare = [get_args(o)[0] if get_origin(o) is Annotated else o for o in options]
    return [o for o in bare if isinstance(o, type) and issubclass(o, BaseModel)]


def shown(value: Any) -> str:
    """Return a value for a message: its repr, shortened in the middle if long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:140]} ... {text[-40:]}"


def _siblings(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    """Return the field names allowed at the place of the unknown key `loc`, if they are known."""
    current: Any = model
    for part in list(loc)[:-1]:
        if part in TAGS:
            current = TAGS[str(part)]
            continue
        if isinstance(part, int):  # an entry of a list has the keys of all of them
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = next(iter(_groups_of(field.annotation)), None)
    return list(getattr(current, "model_fields", {}))


_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+){0,9}")


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Parse command-line arguments `key=value` into a dict of dotted keys; values are YAML."""
    overrides: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(
                f"{shown(word)} came, an override is key=value, as in optimizer.lr=3e-4"
            )
        overrides[key] = parse_yaml(value, f"override {key}")
    return overrides


def set_dotted(data: dict[str, Any], key: str, value: Any) -> None:
    """Set `data["a"]["b"] = value` for the key `a.b`, adding mappings as needed.

    Raises:
        ConfigError: a parent key, as `a`, holds something other than a mapping.
    """
    *parents, last = key.split(".")
    for parent in parents:
        if data.get(parent) is None:
            data[parent] = {}
        data = data[parent]
        if not isinstance(data, dict):
            raise ConfigError(f"override {key}: '{parent}' has no keys of its own")
    data[last] = value


def set_all(data: dict[str, Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Set dotted keys as `set_dotted`; another `adapter.method` gives up the settings of the first.

    Args:
        data: changed in place.
        values: dotted keys and values.
        prefix: put before every key, as in `train.`.
    """
    if (method := values.get("adapter.method")) is not None:
        _switch_method(data, prefix, method)
    for key, value in values.items():
        set_dotted(data, prefix + key, value)


def _switch_method(data: dict[str, Any], prefix: str, method: Any) -> None:
    """Keep of another method's settings its place alone, which means the same to both."""
    group = data.get("train", {}) if prefix else data
    adapter = group.get("adapter") if isinstance(group, dict) else None
    known_one = isinstance(method, str) and method in METHODS
    if known_one and isinstance(adapter, dict) and _method_of(adapter) != method:
        known = {"layers", "placement"} & set(METHODS[method].model_fields)
        group["adapter"] = {key: adapter[key] for key in known if key in adapter}
