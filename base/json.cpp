#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <vector>

#include "base/file.h"

namespace specdec {

namespace {

constexpr size_t kMaxNames = 65536;
// An object that keeps the order of its keys compares each new key with all keys before it, so their number is limited.
constexpr size_t kMaxOrderedKeys = 4096;

// Builds the value from parser events. nlohmann's parser keeps its own stack on the heap. The depth is bounded here,
// before any function that recurses (dump, compare, copy) gets the value.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(const JsonLimits& limits, size_t max_keys)
      : max_depth_(limits.max_depth), max_values_(limits.max_values), max_keys_(max_keys) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(number_integer_t v) override { return add(v); }
  bool number_unsigned(number_unsigned_t v) override { return add(v); }
  bool number_float(number_float_t v, const string_t&) override {
    return std::isfinite(v) ? add(v) : fail("number out of the range of a double");
  }
  bool string(string_t& v) override { return add(std::move(v)); }
  bool binary(binary_t&) override { return fail("unexpected binary value"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    Json::object_t& object = stack_.back()->get_ref<Json::object_t&>();
    const auto [at, is_new] = object.emplace(std::move(name), nullptr);
    if (!is_new) return fail("duplicate key '" + at->first.substr(0, 64) + "'");
    if (object.size() > max_keys_) return fail("an object of more than " + std::to_string(max_keys_) + " keys");
    slot_ = &at->second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    position_ = position;
    std::string text = e.what();
    if (const size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    return fail(text);
  }

  Json root;
  std::string error() const { return position_ ? error_ + " (byte " + std::to_string(position_) + ")" : error_; }

 private:
  template <class T>
  bool add(T&& value) {
    if (!count()) return false;
    place(Json(std::forward<T>(value)));
    return true;
  }
  bool count() { return ++values_ <= max_values_ || fail("more than " + std::to_string(max_values_) + " values"); }
  Json* place(Json&& value) {
    if (stack_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool open(Json&& container) {
    if (stack_.size() >= static_cast<size_t>(max_depth_))
      return fail("nested deeper than " + std::to_string(max_depth_) + " levels");
    if (!count()) return false;
    stack_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }
  bool fail(const std::string& text) {
    if (error_.empty()) error_ = text;
    return false;
  }

  int max_depth_;
  size_t max_values_;
  size_t max_keys_;  // limit of the keys of one object
  size_t values_ = 0;
  std::vector<Json*> stack_;  // open containers; a pointer stays valid while its container is open
  Json* slot_ = nullptr;      // where the value of the last key goes
  std::string error_;
  size_t position_ = 0;
};

// Parser messages quote the input, so they are made short and printable.
std::string printable(std::string text) {
  if (text.size() > 240) text = text.substr(0, 240) + "...";
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return text;
}

std::string describe(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

const Json* find(const Json& object, const char* key, const std::string& where, ErrorKind kind) {
  if (!object.is_object()) throw Error(kind, where + ": expected a JSON object, found " + describe(object));
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json& require(const Json& object, const char* key, const std::string& where, ErrorKind kind) {
  const Json* value = find(object, key, where, kind);
  if (!value) throw Error(kind, where + ": " + key + ": missing");
  return *value;
}

[[noreturn]] void unexpected(const char* key, const std::string& expected, const Json& found, const std::string& where,
                             ErrorKind kind) {
  refuse_value(found, expected, where + ": " + key, kind);
}

template <class Range>
std::string in_range(const char* type, const Range& range) {
  std::ostringstream text;
  text << type << " in [" << range.low << ", " << range.high << "]";
  return text.str();
}

int64_t as_int(const Json& v, const char* key, const JsonInts& allowed, const std::string& where, ErrorKind kind) {
  if (const auto n = allowed.value_of(v)) return *n;
  unexpected(key, allowed.expected(), v, where, kind);
}

double as_double(const Json& v, const char* key, const JsonNumbers& allowed, const std::string& where, ErrorKind kind) {
  if (const auto x = allowed.value_of(v)) return *x;
  unexpected(key, allowed.expected(), v, where, kind);
}

Json build(std::string_view text, const std::string& where, ErrorKind kind, JsonLimits limits, size_t max_keys) {
  if (text.size() > limits.max_bytes)
    throw Error(kind, where + ": JSON of " + std::to_string(text.size()) + " bytes, the limit is " +
                          std::to_string(limits.max_bytes));
  // nlohmann takes a NUL byte for the end of the input and would ignore anything after it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(kind, where + ": not JSON: NUL byte (byte " + std::to_string(nul + 1) + ")");
  Builder builder(limits, max_keys);
  bool done = false;
  try {
    done = Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const nlohmann::json::exception& e) {
    throw Error(kind, where + ": not valid JSON: " + printable(e.what()));
  }
  if (!done) throw Error(kind, where + ": not valid JSON: " + printable(builder.error()));
  return std::move(builder.root);
}

}  // namespace

void refuse_value(const Json& found, const std::string& expected, const std::string& where, ErrorKind kind) {
  throw Error(kind, where + ": expected " + expected + ", found " + describe(found));
}

std::optional<int64_t> JsonInts::value_of(const Json& v) const {
  const bool fits =
      v.is_number_integer() && !(v.is_number_unsigned() && v.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || v.get<int64_t>() < low || v.get<int64_t>() > high) return std::nullopt;
  return v.get<int64_t>();
}
std::string JsonInts::expected() const { return in_range("integer", *this); }

std::optional<double> JsonNumbers::value_of(const Json& v) const {
  if (!v.is_number() || !(v.get<double>() >= low && v.get<double>() <= high)) return std::nullopt;
  return v.get<double>();
}
std::string JsonNumbers::expected() const { return in_range("number", *this); }

Json parse_json(std::string_view text, const std::string& where, ErrorKind kind, JsonLimits limits) {
  return build(text, where, kind, limits, SIZE_MAX);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where, ErrorKind kind,
                                          JsonLimits limits) {
  limits.max_bytes = std::min(limits.max_bytes, kMaxOrderedBytes);
  build(text, where, kind, limits, kMaxOrderedKeys);
  return nlohmann::ordered_json::parse(text);
}

Json read_json(const std::filesystem::path& file, ErrorKind kind, JsonLimits limits) {
  return parse_json(read_file(file, limits.max_bytes, kind), file.string(), kind, limits);
}

std::string canonical_json(const Json& value) {
  try {
    return value.dump();
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::kInternal,
                std::string("a string that is not UTF-8 was to be written as JSON: ") + printable(e.what()));
  }
}

int64_t json_int(const Json& object, const char* key, const JsonInts& allowed, const std::string& where,
                 ErrorKind kind) {
  const Json* value = find(object, key, where, kind);
  if (!value && allowed.fallback) return *allowed.fallback;
  return as_int(value ? *value : require(object, key, where, kind), key, allowed, where, kind);
}

double json_double(const Json& object, const char* key, const JsonNumbers& allowed, const std::string& where,
                   ErrorKind kind) {
  const Json* value = find(object, key, where, kind);
  if (!value && allowed.fallback) return *allowed.fallback;
  return as_double(value ? *value : require(object, key, where, kind), key, allowed, where, kind);
}

bool json_bool(const Json& object, const char* key, bool fallback, const std::string& where, ErrorKind kind) {
  const Json* value = find(object, key, where, kind);
  if (value && !value->is_boolean()) unexpected(key, "true or false", *value, where, kind);
  return value ? value->get<bool>() : fallback;
}

std::string json_string(const Json& object, const char* key, const std::string& where, ErrorKind kind) {
  const Json& value = require(object, key, where, kind);
  if (!value.is_string()) unexpected(key, "a string", value, where, kind);
  return value.get<std::string>();
}

std::string json_string(const Json& object, const char* key, const std::string& fallback, const std::string& where,
                        ErrorKind kind) {
  const Json* value = find(object, key, where, kind);
  if (value && !value->is_string()) unexpected(key, "a string", *value, where, kind);
  return value ? value->get<std::string>() : fallback;
}

const Json& json_array(const Json& object, const char* key, size_t max_items, const std::string& where,
                       ErrorKind kind) {
  const Json& value = require(object, key, where, kind);
  if (!value.is_array() || value.size() > max_items)
    unexpected(key, "an array of at most " + std::to_string(max_items) + " items", value, where, kind);
  return value;
}

const Json& json_object(const Json& object, const char* key, size_t max_items, const std::string& where,
                        ErrorKind kind) {
  const Json& value = require(object, key, where, kind);
  if (!value.is_object() || value.size() > max_items)
    unexpected(key, "an object of at most " + std::to_string(max_items) + " keys", value, where, kind);
  return value;
}

std::map<std::string, int64_t> json_counts(const Json& object, const char* key, const std::string& where,
                                           ErrorKind kind) {
  std::map<std::string, int64_t> counts;
  if (!find(object, key, where, kind)) return counts;
  for (const auto& [name, count] : json_object(object, key, kMaxNames, where, kind).items())
    counts[name] = as_int(count, name.c_str(), {0, kMaxCount}, where + ": " + key, kind);
  return counts;
}

bool is_sha256_hex(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string json_digest(const Json& object, const char* key, bool may_be_empty, const std::string& where,
                        ErrorKind kind) {
  const std::string text =
      may_be_empty ? json_string(object, key, "", where, kind) : json_string(object, key, where, kind);
  if (!is_sha256_hex(text) && !(may_be_empty && text.empty()))
    unexpected(key, "64 lower-case hexadecimal digits", text, where, kind);
  return text;
}

void require_schema(const Json& object, const std::string& name, int version, const std::string& where,
                    ErrorKind kind) {
  const std::string expected = "specdec." + name + "/" + std::to_string(version);
  const std::string found = json_string(object, "schema", where, kind);
  if (found != expected)
    throw Error(kind, where + ": schema: expected \"" + expected + "\", found \"" + printable(found) +
                          "\" (written by another command or another version of specdec)");
}

}  // namespace specdec
