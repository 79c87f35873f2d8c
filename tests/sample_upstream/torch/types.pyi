import builtins

_bool = builtins.bool
_complex = builtins.complex
_float = builtins.float
_int = builtins.int
Number = builtins.int | builtins.float | builtins.bool
_size = list[builtins.int] | tuple[builtins.int, ...]

class _dtype: ...
class _layout: ...
