// A text as a reader sees it, for the detectors of redaction: secrets are written with no-break spaces, full-width
// digits, typographic dashes, invisible characters and percent-encoding, and every pattern would have to know them all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::data {

struct NormalisedText {
  std::string text;
  std::vector<uint32_t> origin;  // of text.size() + 1: where in the original each byte, and the end, came from
};

// Spaces of every width become ' '; full-width ASCII and the decimal digits of other scripts become ASCII; dashes and
// minus signs become '-'; zero-width characters and soft hyphens vanish; %XX of a printable ASCII character becomes
// that character, also where the
// '%' itself was encoded (%2540). Nothing if that changes no character. `text` must be valid UTF-8 of less than 4 GiB.
std::optional<NormalisedText> normalise(std::string_view text);

}  // namespace specdec::data
