"""The two build modes as lists of named steps."""
