"""Tiny-attention adapters over frozen pretrained language models (Zhao, Tan & Mei, EMNLP 2022)."""
