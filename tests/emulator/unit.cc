/* Builds one kernel source as a shared object. MF_EMULATOR_SOURCE is the source file, MF_EMULATOR_KERNELS its
 * kernels: X(mf_tile)X(…). Without MF_EMULATOR_KERNELS the file is only preprocessed, to list the kernels. */
#include MF_EMULATOR_SOURCE

#ifdef MF_EMULATOR_KERNELS
#    define MF_OUTSIDE __attribute__((no_sanitize_thread))

template <class ARGS> static MF_OUTSIDE void call(void (*kernel)(const ARGS), const void *arguments)
{
    kernel(*(const ARGS *)arguments);
}
template <auto KERNEL> static MF_OUTSIDE void call_of(const void *arguments)
{
    call(KERNEL, arguments);
}
template <class ARGS> static constexpr size_t bytes_of(void (*)(const ARGS))
{
    return sizeof(ARGS);
}

#    define X(name) {#name, call_of<name>, bytes_of(name)},
extern "C" __attribute__((visibility("default"))) const mf_emulator_kernel mf_emulator_kernels[] = {
    MF_EMULATOR_KERNELS{}};
#endif
