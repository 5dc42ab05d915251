#include "data/formats/row_json.h"

#include <simdjson.h>

namespace specdec::data {

namespace {

// simdjson's buffers grow to the longest row and are never freed, so the rare rows longer than this use the slower
// parser.
constexpr size_t kFastRowBytes = 1 << 20;

// Copies `from` to `to`, with arrays under "tools" and "tool_calls" as JSON text. Returns false if an object has a
// duplicate key, which parse_json refuses but simdjson accepts.
bool copy_value(const simdjson::dom::element& from, Json& to) {
  using simdjson::dom::element_type;
  switch (from.type()) {
    case element_type::OBJECT: {
      to = Json::object();
      Json::object_t& object = to.get_ref<Json::object_t&>();
      for (const auto& [key, value] : simdjson::dom::object(from)) {
        const auto [at, is_new] = object.try_emplace(std::string(key));
        if (!is_new) return false;
        if ((key == "tools" || key == "tool_calls") && value.is_array() && simdjson::dom::array(value).size() > 0)
          at->second = simdjson::minify(value);
        else if (!copy_value(value, at->second))
          return false;
      }
      return true;
    }
    case element_type::ARRAY: {
      const simdjson::dom::array items(from);
      to = Json::array();
      Json::array_t& array = to.get_ref<Json::array_t&>();
      array.reserve(items.size());
      for (const auto& item : items)
        if (!copy_value(item, array.emplace_back())) return false;
      return true;
    }
    case element_type::STRING: {
      to = std::string(std::string_view(from));
      return true;
    }
    case element_type::INT64: {
      const int64_t n(from);
      if (n < 0)
        to = n;
      else
        to = static_cast<uint64_t>(n);  // unsigned, as parse_json does it
      return true;
    }
    case element_type::UINT64:
      to = uint64_t(from);
      return true;
    case element_type::DOUBLE:
      to = double(from);
      return true;
    case element_type::BOOL:
      to = bool(from);
      return true;
    case element_type::NULL_VALUE:
      to = nullptr;
      return true;
  }
  return false;
}

}  // namespace

Json parse_row_json(std::string_view text) {
  if (text.size() <= kFastRowBytes) {
    thread_local simdjson::dom::parser parser;
    // allocate() also sets the maximum depth, which stays the same when the buffers grow.
    thread_local const auto ready = parser.allocate(4096, kMaxRowDepth);
    simdjson::dom::element root;
    Json value;
    if (ready == simdjson::SUCCESS && parser.parse(text.data(), text.size()).get(root) == simdjson::SUCCESS &&
        copy_value(root, value))
      return value;
  }
  return parse_json(text, "row", ErrorKind::kData, {text.size(), kMaxRowDepth});
}

}  // namespace specdec::data
