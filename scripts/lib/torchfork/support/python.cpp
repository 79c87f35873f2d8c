// What torch._C has of ours, compiled as one: its files parse much the same headers, and those are
// most of the time.

#include "module.cpp"
#include "python_support.cpp"
