"""Tiny-attention adapters over frozen pretrained language models (Zhao, Tan & Mei, EMNLP 2022)."""

import os

# Read when the libraries are imported, which may happen from several places: nothing reports home.
for _switch in ("MLFLOW_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ.setdefault(_switch, "true")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
