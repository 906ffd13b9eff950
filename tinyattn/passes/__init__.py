"""Passes of rows through an adapted PLM: of one trial, shared by trials or ranks, from a cache."""
