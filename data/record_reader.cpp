#include "data/record_reader.h"

#include <algorithm>
#include <cstring>

#include "base/json.h"

namespace specdec::data {

namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr int kDetectLines = 100;
constexpr std::string_view kBlank = " \t\r\n";

std::string_view trim(std::string_view s) {
  const size_t begin = s.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(kBlank) - begin + 1);
}

// Content that would only give thousands of rejects gets one error that says what it is.
void refuse_other_content(const InputFile& file) {
  unsigned char head[4] = {0, 0, 0, 0};
  const size_t n = std::min<uint64_t>(sizeof head, file.size());
  file.read(0, std::as_writable_bytes(std::span(head, n)));
  const auto starts = [&](std::initializer_list<int> magic) {
    return n >= magic.size() && std::equal(magic.begin(), magic.end(), head, [](int m, unsigned char b) { return m == b; });
  };
  const auto refuse = [&](const char* what) { throw Error(ErrorKind::kData, file.path().string() + ": " + what); };
  if (starts({0xFF, 0xFE}) || starts({0xFE, 0xFF}) || (n == 4 && ((head[0] && !head[1] && head[2] && !head[3]) || (!head[0] && head[1] && !head[2] && head[3]))))
    refuse("UTF-16 text, expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8)");
  if (starts({0x1F, 0x8B})) refuse("gzip data, expected text: decompress it first (gunzip)");
  if (starts({0x28, 0xB5, 0x2F, 0xFD})) refuse("zstd data, expected text: decompress it first (unzstd)");
  if (starts({'P', 'A', 'R', '1'})) refuse("a Parquet file, expected text: export it as JSONL first");
}

}  // namespace

RecordReader::RecordReader(const fs::path& path, Container container, std::string separator, size_t max_record_bytes)
    : file_(path, ErrorKind::kData), container_(container), delimiter_(std::move(separator)), max_record_bytes_(max_record_bytes) {
  if (container_ == Container::kLines) delimiter_ = "\n";
  refuse_other_content(file_);
  fill();
  if (std::string_view(buffer_).starts_with("\xEF\xBB\xBF")) position_ = 3;
}

// Appends the next block; bytes already handed out are dropped first. False at the end of the file.
bool RecordReader::fill() {
  const size_t n = std::min<uint64_t>(kBlockBytes, file_.size() - file_offset_);
  if (n == 0) return false;
  buffer_.erase(0, position_);
  position_ = 0;
  const size_t old = buffer_.size();
  buffer_.resize(old + n);
  const std::span<std::byte> block = std::as_writable_bytes(std::span(buffer_)).subspan(old);
  file_.read(file_offset_, block);
  sha_.update(block);
  file_offset_ += n;
  return true;
}

bool RecordReader::next(RawRecord& record) {
  while (true) {
    record = RawRecord{};
    if (!(container_ == Container::kArray ? next_element(record) : next_delimited(record))) return false;
    if (container_ == Container::kDocuments) record.text = trim(record.text);
    if (record.text.ends_with('\r')) record.text.remove_suffix(1);
    if (record.too_long || !trim(record.text).empty()) return true;
  }
}

bool RecordReader::next_delimited(RawRecord& record) {
  size_t searched = position_;
  while (true) {
    const size_t end = delimiter_.empty() ? std::string::npos : buffer_.find(delimiter_, searched);
    if (end != std::string::npos) {
      record.too_long |= end - position_ > max_record_bytes_;
      if (!record.too_long) record.text = std::string_view(buffer_).substr(position_, end - position_);
      position_ = end + delimiter_.size();
      record.number = ++number_;
      return true;
    }
    // A delimiter may begin in the last bytes of the block: keep those, and drop the rest of a record that is too long.
    const size_t keep = std::min(buffer_.size() - position_, delimiter_.empty() ? 0 : delimiter_.size() - 1);
    if (buffer_.size() - position_ > max_record_bytes_) {
      record.too_long = true;
      position_ = buffer_.size() - keep;
    }
    const size_t pending = buffer_.size() - position_;
    if (!fill()) break;
    searched = pending - keep;
  }
  if (position_ == buffer_.size() && !record.too_long) return false;
  record.too_long |= buffer_.size() - position_ > max_record_bytes_;
  if (!record.too_long) record.text = std::string_view(buffer_).substr(position_);
  record.unterminated = true;
  position_ = buffer_.size();
  record.number = ++number_;
  return true;
}

bool RecordReader::next_element(RawRecord& record) {
  const auto broken = [&](const std::string& what) {
    throw Error(ErrorKind::kData, file_.path().string() + ": not a JSON array: " + what + " near byte " + std::to_string(bytes_done()));
  };
  const auto peek = [&]() -> int {  // next byte that is not blank, -1 at the end
    while (true) {
      const size_t at = buffer_.find_first_not_of(kBlank, position_);
      position_ = at == std::string::npos ? buffer_.size() : at;
      if (at != std::string::npos) return static_cast<unsigned char>(buffer_[at]);
      if (!fill()) return -1;
    }
  };
  if (array_ == ArrayState::kEnd) return false;
  if (array_ == ArrayState::kStart) {
    if (peek() != '[') broken("expected '['");
    ++position_;
    array_ = ArrayState::kInside;
  } else if (peek() == ',') {
    ++position_;
  } else if (peek() != ']') {
    broken("expected ',' or ']'");
  }
  if (peek() == ']') {
    ++position_;
    array_ = ArrayState::kEnd;
    if (peek() != -1) broken("found more after ']'");
    return false;
  }
  // Brackets are counted outside strings; whether the element is JSON is for the parser to say.
  int64_t depth = 0;
  bool in_string = false, escaped = false;
  for (size_t i = position_;; ++i) {
    if (i == buffer_.size()) {
      if (buffer_.size() - position_ > max_record_bytes_) {
        record.too_long = true;
        position_ = buffer_.size();
      }
      i -= position_;
      if (!fill()) broken("the file ends inside an element");
    }
    const char c = buffer_[i];
    if (in_string) {
      if (escaped) escaped = false;
      else if (c == '\\') escaped = true;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      record.too_long |= i - position_ > max_record_bytes_;
      if (!record.too_long) record.text = trim(std::string_view(buffer_).substr(position_, i - position_));
      position_ = i;
      record.number = ++number_;
      return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

std::string RecordReader::finish_sha256() {
  do position_ = buffer_.size();
  while (fill());
  return sha_.hex();
}

Container detect_container(const fs::path& path, size_t max_record_bytes) {
  const std::string extension = path.extension().string();
  RecordReader reader(path, Container::kLines, "", max_record_bytes);
  if (extension == ".jsonl" || extension == ".ndjson") return Container::kLines;
  RawRecord record;
  int lines = 0, objects = 0;
  while (lines < kDetectLines && reader.next(record)) {
    const std::string_view text = trim(record.text);
    if (lines == 0 && text.starts_with('[')) {
      const std::string_view first = trim(text.substr(1));
      if (first.empty() || first.starts_with('{')) return Container::kArray;
    }
    // A line cut short or too long still counts as an attempt at JSON; its reject says what is wrong with it.
    objects += record.too_long || text.starts_with('{') ? 1 : 0;
    ++lines;
  }
  return objects * 2 > lines || extension == ".json" ? Container::kLines : Container::kDocuments;
}

bool is_valid_utf8(std::string_view s) {
  const auto* p = reinterpret_cast<const unsigned char*>(s.data());
  const unsigned char* const end = p + s.size();
  while (p < end) {
    uint64_t word;
    if (end - p >= 8 && (std::memcpy(&word, p, 8), (word & 0x8080808080808080ull) == 0)) {
      p += 8;
      continue;
    }
    const unsigned char c = *p;
    const int n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    if (n == 0 || end - p < n) return false;
    for (int i = 1; i < n; ++i)
      if ((p[i] & 0xC0) != 0x80) return false;
    // Overlong forms, surrogates and values over U+10FFFF (Unicode 15, table 3-7).
    if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F) || (c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return false;
    p += n;
  }
  return true;
}

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace specdec::data
