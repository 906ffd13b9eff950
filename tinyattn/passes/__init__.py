"""Passes of batches through an adapted PLM: alone, shared by trials or ranks, from a cache."""
