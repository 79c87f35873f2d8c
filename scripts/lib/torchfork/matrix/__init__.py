"""Carries additions to other upstream releases, tier by tier, and keeps what came out."""
