// Compiles the search for contenders for the instructions that every CPU of this architecture has, and chooses among
// all searches.
#define SPECDEC_ISA baseline
#define SPECDEC_LANES 4
#include "engine/decode/sampling/contenders_impl.h"

namespace specdec::decode {

#if defined(__x86_64__)
namespace avx2 {
const ContenderSearch& search();
}
namespace avx512 {
const ContenderSearch& search();
}
#endif

int contender_searches(const ContenderSearch* out[kContenderSearches]) {
  int n = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) out[n++] = &avx512::search();
  if (__builtin_cpu_supports("avx2")) out[n++] = &avx2::search();
#endif
  out[n++] = &baseline::search();
  return n;
}

const ContenderSearch& contender_search() {
  static const ContenderSearch& best = []() -> const ContenderSearch& {
    const ContenderSearch* all[kContenderSearches];
    contender_searches(all);
    return *all[0];
  }();
  return best;
}

}  // namespace specdec::decode
