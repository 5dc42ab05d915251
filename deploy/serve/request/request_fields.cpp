#include "deploy/serve/request/request_fields.h"

#include <algorithm>
#include <limits>

namespace specdec::deploy {

namespace {

bool is_int64(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() &&
           value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

constexpr char kSpace[] = " \t\r\n";

// Returns the position after the JSON value that begins at `at`. The JSON must be well-formed.
size_t value_end(std::string_view json, size_t at) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = at; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      in_string = false;
      if (depth == 0) return i + 1;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (depth == 0) return i;  // a number at `at` ends before the brace that closes the object
      if (--depth == 0) return i + 1;
    } else if (depth == 0 && (c == ',' || std::string_view(kSpace).find(c) != std::string_view::npos)) {
      return i;
    }
  }
  return json.size();
}

}  // namespace

void reject(const std::string& param, const std::string& expected) {
  throw Rejected{invalid_parameter(param, expected)};
}

void refuse(const std::string& param) { throw Rejected{unsupported_parameter(param)}; }

const Json* find_field(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

bool read_boolean(const Json& object, const char* key, const std::string& param, bool fallback) {
  const Json* value = find_field(object, key);
  if (!value) return fallback;
  if (!value->is_boolean()) reject(param, "true or false");
  return value->get<bool>();
}

std::string read_text(const Json& value, const std::string& param) {
  if (!value.is_string()) reject(param, "a string");
  const std::string& s = value.get_ref<const std::string&>();
  if (s.find('\0') != std::string::npos) reject(param, "text without NUL characters");
  return s;
}

int64_t read_integer(const Json& value, const IntegerRange& range, const char* param) {
  if (!is_int64(value) || !range.contains(value.get<int64_t>())) reject(param, range.text());
  return value.get<int64_t>();
}

std::optional<std::string_view> raw_member(std::string_view body, std::string_view key) {
  std::optional<std::string_view> found;
  size_t at = body.find('{');
  while (at != std::string_view::npos && at < body.size()) {
    const size_t key_begin = body.find_first_not_of(" \t\r\n{,", at);
    if (key_begin == std::string_view::npos || body[key_begin] != '"') break;
    const size_t key_end = value_end(body, key_begin);
    const size_t colon = body.find(':', key_end);
    if (colon == std::string_view::npos) break;
    const size_t begin = body.find_first_not_of(kSpace, colon + 1);
    if (begin == std::string_view::npos) break;
    const size_t end = value_end(body, begin);
    const std::string_view quoted = body.substr(key_begin, key_end - key_begin);
    const bool same = quoted.find('\\') == std::string_view::npos ? quoted.substr(1, quoted.size() - 2) == key
                                                                  : Json::parse(quoted) == Json(key);
    if (same) found = body.substr(begin, end - begin);
    at = end;
  }
  return found;
}

OrderedJson ordered_member(std::string_view body, const std::string& key) {
  const std::optional<std::string_view> raw = raw_member(body, key);
  if (!raw) return nullptr;
  try {
    return parse_ordered_json(*raw, key);
  } catch (const Error&) {  // the parser's message would quote the request
    reject(key, "at most " + std::to_string(kMaxOrderedBytes) + " bytes, and at most 4096 keys in each object");
  }
}

}  // namespace specdec::deploy
