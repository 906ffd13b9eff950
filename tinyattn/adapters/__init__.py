"""Adapters: tiny attention beside a frozen PLM, its experts, its classifier, its files."""
