// Normalises a text to what a reader sees, before redaction searches it. Secrets may be written with no-break spaces,
// full-width digits, typographic dashes, invisible characters and percent-encoding. Without normalisation, every
// pattern would have to handle all of these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::data {

struct NormalisedText {
  std::string text;
  std::vector<uint32_t> origin;  // text.size() + 1 entries: the position in the original of each byte, and of the end
};

// Returns the text with these changes: spaces of every width become ' '; full-width ASCII and the decimal digits of
// other scripts become ASCII; dashes and minus signs become '-'; zero-width characters and soft hyphens are removed;
// %XX of a printable ASCII character becomes that character, also if the '%' itself was encoded (%2540). Returns
// nothing if no character changes. `text` must be valid UTF-8 of less than 4 GiB.
std::optional<NormalisedText> normalise(std::string_view text);

}  // namespace specdec::data
