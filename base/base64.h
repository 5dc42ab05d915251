// Encodes bytes as RFC 4648 base64 with padding, on one line.
#pragma once

#include <string>
#include <string_view>

namespace specdec {

std::string base64(std::string_view bytes);

}  // namespace specdec
