// Keeps the wheel's promise to older systems: no symbol that only a new glibc has.
//
// GCC's shared_ptr looks at __libc_single_threaded (glibc 2.32) to skip atomic operations in
// programs without threads. Official wheels promise glibc 2.28 (manylinux_2_28) or less. A hidden
// definition of our own, which never claims to be single-threaded, takes the reference away; both
// grafted libraries hold one.

#if defined(__GLIBC__) || defined(__linux__)
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
#endif
