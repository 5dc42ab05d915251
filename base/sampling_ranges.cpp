#include "base/sampling_ranges.h"

#include "base/format.h"

namespace specdec {

std::string NumberRange::text() const {
  return (or_zero ? "0, or a number from " : "a number from ") + number_text(low) + (below_high ? ", below " : " to ") +
         number_text(high);
}

}  // namespace specdec
