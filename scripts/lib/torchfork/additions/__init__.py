"""What a user adds: read, validated, and merged into upstream's YAML."""
