// Reads bounded JSON and writes canonical JSON, with nlohmann::json. The depth of untrusted input is limited while it
// is parsed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace specdec {

using Json = nlohmann::json;

struct JsonLimits {
  size_t max_bytes = 64u << 20;
  int max_depth = 64;
  // Limits the number of values of all arrays and objects together: an empty array takes 2 bytes of text but 180 of
  // memory.
  size_t max_values = size_t{1} << 20;
};

// Parses one JSON value that fills all of `text`. Duplicate keys, invalid UTF-8, trailing bytes, and a depth, size or
// number of values over the limits are errors. Throws Error(kind) with `where` (usually a file name) and the byte
// position. Never recurses deeper than max_depth.
Json parse_json(std::string_view text, const std::string& where, ErrorKind kind = ErrorKind::kData,
                JsonLimits limits = {});

// Parses like parse_json() but keeps the order of keys, for JSON that is shown to a model. Accepts at most
// kMaxOrderedBytes, and 4096 keys per object. Throws the same errors as parse_json().
inline constexpr size_t kMaxOrderedBytes = size_t{1} << 20;
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where,
                                          ErrorKind kind = ErrorKind::kData, JsonLimits limits = {});

// Reads and parses a regular file. Throws Error(kind) if it is missing, not a regular file, too large or malformed.
Json read_json(const std::filesystem::path& file, ErrorKind kind = ErrorKind::kData, JsonLimits limits = {});

// Returns UTF-8 JSON with sorted keys and without spaces, so that equal values give equal bytes. Digests are computed
// from it.
std::string canonical_json(const Json& value);

// The allowed range [low, high] of a key's value, and the value used if the key is missing.
struct JsonInts {
  int64_t low, high;
  std::optional<int64_t> fallback = {};
  std::optional<int64_t> value_of(const Json& found) const;  // nothing if `found` is not an allowed integer
  std::string expected() const;                              // for messages: "integer in [1, 65536]"
};
struct JsonNumbers {
  double low, high;
  std::optional<double> fallback = {};
  std::optional<double> value_of(const Json& found) const;
  std::string expected() const;
};
// Throws Error(kind): "<where>: expected <expected>, found <the value>".
[[noreturn]] void refuse_value(const Json& found, const std::string& expected, const std::string& where,
                               ErrorKind kind);

// Return the typed value of a key. An error names the key ("config.json: hidden_size: expected integer in [1, 65536],
// found -3"). `where` is the file (or the path inside it). A missing key or null gives the fallback if there is one,
// else an error.
int64_t json_int(const Json& object, const char* key, const JsonInts& allowed, const std::string& where,
                 ErrorKind kind);
double json_double(const Json& object, const char* key, const JsonNumbers& allowed, const std::string& where,
                   ErrorKind kind);
bool json_bool(const Json& object, const char* key, bool fallback, const std::string& where, ErrorKind kind);
std::string json_string(const Json& object, const char* key, const std::string& where, ErrorKind kind);
std::string json_string(const Json& object, const char* key, const std::string& fallback, const std::string& where,
                        ErrorKind kind);

// Returns the array or object under `key`. Throws Error(kind) if it is missing, of another type or longer than
// `max_items`.
const Json& json_array(const Json& object, const char* key, size_t max_items, const std::string& where, ErrorKind kind);
const Json& json_object(const Json& object, const char* key, size_t max_items, const std::string& where,
                        ErrorKind kind);
// Returns counts by name, each in [0, kMaxCount], or an empty map if the key is missing. Throws Error(kind) for
// anything else and for more than 65536 names.
inline constexpr int64_t kMaxCount = int64_t{1} << 50;
std::map<std::string, int64_t> json_counts(const Json& object, const char* key, const std::string& where,
                                           ErrorKind kind);
// Returns the SHA-256 digest under `key`: 64 lower-case hexadecimal digits, or "" if `may_be_empty` is true and the
// digest is missing or empty.
std::string json_digest(const Json& object, const char* key, bool may_be_empty, const std::string& where,
                        ErrorKind kind);
bool is_sha256_hex(std::string_view text);

// Checks that object["schema"] is "specdec.<name>/<version>". Throws Error(kind) for other names and unknown versions.
void require_schema(const Json& object, const std::string& name, int version, const std::string& where,
                    ErrorKind kind = ErrorKind::kData);

}  // namespace specdec
