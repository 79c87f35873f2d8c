"""Compilers, object files, symbols, libraries."""
