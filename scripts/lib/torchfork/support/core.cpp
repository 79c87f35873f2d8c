// The stand-ins of libtorch's part, compiled as one: they parse much the same headers, and those are
// most of the time.

#include "core_support.cpp"
#include "functorch_support.cpp"
