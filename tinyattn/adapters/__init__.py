"""Adapters: tiny attention in a frozen PLM, with classifier, experts and files."""
