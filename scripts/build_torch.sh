#!/usr/bin/env bash
# Builds the wheel: a short name for `scripts/torchfork build`, with the same options.
set -euo pipefail

self=${BASH_SOURCE[0]}
while [[ -L $self ]]; do
  link=$(readlink -- "$self")
  if [[ $link != /* && $self == */* ]]; then link=${self%/*}/$link; fi
  self=$link
done
if [[ $self != */* ]]; then self=./$self; fi
exec "${self%/*}/torchfork" build "$@"
