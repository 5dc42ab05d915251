// Lets a program that GCC 12 or newer built run with the libstdc++ of GCC 11, the newest that a manylinux_2_34 wheel
// may ask for (RHEL 9 has it). In GCC 12, std::condition_variable::wait became not noexcept and got a new symbol
// version, GLIBCXX_3.4.30; libstdc++ still has the old version. The executables are linked with --wrap for this symbol
// (cmake/install.cmake), so that every call comes here and goes to the old version. Source of the versions: GCC 12,
// libstdc++-v3/config/abi/pre/gnu.ver.
#include <condition_variable>
#include <mutex>

#if defined(__GLIBCXX__)
extern "C" {
void specdec_condition_variable_wait(std::condition_variable*, std::unique_lock<std::mutex>&);
void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* variable,
                                                                      std::unique_lock<std::mutex>& lock) {
  specdec_condition_variable_wait(variable, lock);
}
}
__asm__(
    ".symver specdec_condition_variable_wait, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
