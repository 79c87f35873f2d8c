# shellcheck shell=bash
# To be sourced: sets what a source build of a tree needs, and says where each value comes from.
#
#   source scripts/env.sh TREE
#
# Your own values win: USE_CUDA=1 MAX_JOBS=2 source scripts/env.sh TREE. `scripts/torchfork env TREE`
# prints the same and changes nothing.
_torchfork_scripts=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)
if _torchfork_exports=$("$_torchfork_scripts/torchfork" env --shell "$@"); then
  eval "$_torchfork_exports"
  unset _torchfork_scripts _torchfork_exports
else
  unset _torchfork_scripts _torchfork_exports
  false
fi
