/* One kernel as a shared object: MF_EMULATOR_SOURCE is its file, MF_EMULATOR_FUNCTION the function to call. */
#include MF_EMULATOR_SOURCE

template <class ARGS> static __attribute__((no_sanitize_thread)) void call(void (*kernel)(const ARGS), const void *arguments)
{
    kernel(*(const ARGS *)arguments);
}

extern "C" __attribute__((no_sanitize_thread, visibility("default"))) void mf_emulator_call(const void *arguments)
{
    call(MF_EMULATOR_FUNCTION, arguments);
}

#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)
extern "C" __attribute__((visibility("default"))) const char mf_emulator_function[] = TEXT(MF_EMULATOR_FUNCTION);
