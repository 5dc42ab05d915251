#include "base/version.h"

namespace specdec {

const char* const kToolVersion = SPECDEC_VERSION;

}  // namespace specdec
