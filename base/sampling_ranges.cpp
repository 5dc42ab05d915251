#include "base/sampling_ranges.h"

#include <cstdio>

namespace specdec {

std::string NumberRange::text() const {
  char words[96];
  std::snprintf(words, sizeof words, "%sa number from %g%s %g", or_zero ? "0, or " : "", low,
                below_high ? ", below" : " to", high);
  return words;
}

}  // namespace specdec
