"""Reversible changes of files that are not ours: an installed torch, a source tree."""
