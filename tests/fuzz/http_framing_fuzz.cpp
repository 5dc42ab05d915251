// Fuzzes the server's own reader of requests with the raw bytes of a connection, which arrive in pieces of random
// length. This file has a second reader that follows RFC 9112 literally. For any pieces, the server must never find a
// request that the second reader does not find (request smuggling).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/http/http_request_reader.h"

namespace {

using namespace specdec::deploy;
using Bodies = std::vector<std::string>;

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c > ' ' && c < 127 && !std::strchr("\"(),/:;<=>?@[\\]{}", c);
  });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Takes a line that ends with CRLF from `rest`. Returns nothing if there is no CRLF, or if a CR or LF stands alone.
std::optional<std::string_view> take_line(std::string_view& rest) {
  const size_t end = rest.find("\r\n");
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 2);
  return line.find_first_of("\r\n") == std::string_view::npos ? std::optional(line) : std::nullopt;
}

// Leading zeros of a number are allowed (RFC 9110 8.6, RFC 9112 7.1: 1*DIGIT, 1*HEXDIG) and do not change its value.
std::string_view without_zeros(std::string_view digits) {
  return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
}

bool take_chunks(std::string_view& rest, std::string& body) {
  for (;;) {
    const auto line = take_line(rest);
    const size_t digits = line ? std::min(line->find_first_not_of("0123456789abcdefABCDEF"), line->size()) : 0;
    if (digits == 0) return false;
    const std::string number(without_zeros(line->substr(0, digits)));
    if (number.size() > 15) return false;
    const size_t size = std::strtoull(number.c_str(), nullptr, 16);
    if (size == 0) break;
    if (rest.size() < size + 2 || rest.substr(size, 2) != "\r\n") return false;
    body += rest.substr(0, size);
    rest.remove_prefix(size + 2);
  }
  for (;;) {  // trailers
    const auto line = take_line(rest);
    if (!line) return false;
    if (line->empty()) return true;
  }
}

// Takes the next request from `rest`, following RFC 9112 literally. Returns nothing if its end is ambiguous.
std::optional<std::string> take_request(std::string_view& rest) {
  if (rest.starts_with("\r\n")) rest.remove_prefix(2);  // 2.2: one empty line before a request is ignored
  const auto start = take_line(rest);
  if (!start || (!start->ends_with(" HTTP/1.1") && !start->ends_with(" HTTP/1.0"))) return std::nullopt;
  std::vector<std::string> lengths, codings;
  for (;;) {
    const auto line = take_line(rest);
    if (!line) return std::nullopt;
    if (line->empty()) break;
    const size_t colon = line->find(':');
    if (colon == std::string_view::npos || !is_token(line->substr(0, colon))) return std::nullopt;
    const std::string name = lower(line->substr(0, colon));
    if (name == "content-length") lengths.emplace_back(trim(line->substr(colon + 1)));
    if (name == "transfer-encoding") codings.push_back(lower(trim(line->substr(colon + 1))));
  }
  std::string body;
  if (!codings.empty()) {
    if (codings.size() > 1 || codings[0] != "chunked" || !lengths.empty() || start->ends_with("1.0"))
      return std::nullopt;
    if (!take_chunks(rest, body)) return std::nullopt;
  } else if (!lengths.empty()) {
    const bool plain =
        lengths.size() == 1 && !lengths[0].empty() && lengths[0].find_first_not_of("0123456789") == std::string::npos;
    const std::string number = plain ? std::string(without_zeros(lengths[0])) : "";
    if (!plain || number.size() > 19) return std::nullopt;
    const size_t size = std::strtoull(number.c_str(), nullptr, 10);
    if (rest.size() < size) return std::nullopt;
    body = rest.substr(0, size);
    rest.remove_prefix(size);
  }
  return body;
}

Bodies by_the_letter(std::string_view bytes) {
  Bodies bodies;
  for (auto body = take_request(bytes); body; body = take_request(bytes)) bodies.push_back(std::move(*body));
  return bodies;
}

// Feeds the server's reader with pieces of 1 to `longest_piece` bytes, drawn from `random`; 0 means all bytes at once.
Bodies as_the_server_reads(std::string_view bytes, uint64_t random, size_t longest_piece, const ServeLimits& limits) {
  using State = RequestReader::State;
  RequestReader reader(limits);
  Bodies bodies;
  State state = State::kHead;
  for (;;) {
    if (state == State::kHead) state = reader.read_head();
    if (state == State::kBody) state = reader.read_body();
    if (state == State::kFaulty) {
      if (reader.fault().status < 400 || reader.fault().status > 505) std::abort();
      return bodies;
    }
    if (state == State::kWhole) {
      bodies.push_back(reader.head().has_body ? reader.take_body() : std::string());
      if (bodies.back().size() > limits.body_bytes || reader.head().path.size() > limits.header_bytes) std::abort();
      reader.next();
      state = State::kHead;
      continue;
    }
    if (bytes.empty()) return bodies;
    const auto room = reader.prepare();
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const size_t n =
        std::min({bytes.size(), room.size(),
                  longest_piece == 0 ? bytes.size() : 1 + static_cast<size_t>(random >> 33) % longest_piece});
    std::memcpy(room.data(), bytes.data(), n);
    reader.commit(n);
    bytes.remove_prefix(n);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ServeLimits limits = [] {
    ServeLimits small;
    small.header_bytes = 1024;
    small.header_fields = 16;
    small.body_bytes = 2048;
    return small;
  }();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  uint64_t random = size;
  for (size_t i = 0; i < size; ++i) random = random * 31 + data[i];
  const Bodies allowed = by_the_letter(bytes);
  for (const size_t longest_piece : {0, 3, 80}) {
    const Bodies found = as_the_server_reads(bytes, random, longest_piece, limits);
    if (found.size() > allowed.size() || !std::equal(found.begin(), found.end(), allowed.begin())) std::abort();
  }
  return 0;
}
