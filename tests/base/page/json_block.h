// Reads the JSON that a page embeds.
#pragma once

#include <string>

namespace specdec::testing {

// Returns the text that an HTML parser finds in the <script …> element with this id.
inline std::string json_block(const std::string& html, const std::string& id) {
  const std::string open = "<script type=\"application/json\" id=\"" + id + "\">";
  const size_t start = html.find(open);
  if (start == std::string::npos) return "";
  return html.substr(start + open.size(), html.find("</script", start) - start - open.size());
}

}  // namespace specdec::testing
