"""Finished wheels: packed, repaired, verified, described."""
