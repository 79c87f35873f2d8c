#!/usr/bin/env bash
# Carries the additions to other releases: a short name for `scripts/torchfork rebase`.
set -euo pipefail

self=${BASH_SOURCE[0]}
while [[ -L $self ]]; do
  link=$(readlink -- "$self")
  if [[ $link != /* && $self == */* ]]; then link=${self%/*}/$link; fi
  self=$link
done
if [[ $self != */* ]]; then self=./$self; fi
exec "${self%/*}/torchfork" rebase "$@"
