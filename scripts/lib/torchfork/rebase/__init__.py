"""Carries additions to other upstream releases, tier by tier, and reports what came out."""
