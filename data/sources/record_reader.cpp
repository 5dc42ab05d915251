#include "data/sources/record_reader.h"

#include <algorithm>

#include "base/error.h"
#include "data/formats/blank.h"

namespace specdec::data {

namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr int kDetectLines = 100;

// Returns how many more brackets the line opens than it closes, not counting those inside strings.
int64_t open_brackets(std::string_view line) {
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string) {
      if (line[i] == '\\')
        ++i;
      else if (line[i] == '"')
        in_string = false;
    } else if (line[i] == '"') {
      in_string = true;
    } else if (line[i] == '{' || line[i] == '[') {
      ++depth;
    } else if (line[i] == '}' || line[i] == ']') {
      --depth;
    }
  }
  return depth;
}

// Returns whether an object that begins in `line` goes on in `rest`, so that it is printed over several lines. Returns
// false if `line` is a truncated record and `rest` begins with the next record.
bool goes_on(std::string_view line, std::string_view rest) {
  if (!line.starts_with('{') || rest.empty() || open_brackets(line) <= 0) return false;
  const std::string_view inside = trimmed(line.substr(1));
  if ((inside.empty() ? rest[0] : inside[0]) != '"') return false;
  return !rest.starts_with('{') || std::string_view("{[,:").find(line.back()) != std::string_view::npos;
}

}  // namespace

RecordReader::RecordReader(const std::string& source, ReaderOptions options)
    : name_(source == kStandardInput ? "standard input" : source),
      bytes_(open_bytes(source)),
      max_record_bytes_(options.max_record_bytes) {
  while (buffer_.size() < kBlockBytes && fill()) {
  }
  refuse_utf16();
  if (std::string_view(buffer_).starts_with("\xEF\xBB\xBF")) position_ = 3;
  container_ = options.container
                   ? *options.container
                   : guess_container(source, std::string_view(buffer_).substr(position_), max_record_bytes_);
  if (bytes_->is_table()) container_ = Container::kLines;
  if (!options.container && !options.may_be_documents && container_ == Container::kDocuments)
    container_ = Container::kLines;
  delimiter_ = container_ == Container::kLines ? "\n" : std::move(options.separator);
}

// Throws Error(kData) for UTF-16, because otherwise every line of the file would be rejected without naming the cause.
void RecordReader::refuse_utf16() const {
  const std::string_view head = std::string_view(buffer_).substr(0, 4);
  const bool little = head.size() == 4 && head[0] && !head[1] && head[2] && !head[3],
             big = head.size() == 4 && !head[0] && head[1] && !head[2] && head[3];
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF") || little || big)
    throw Error(ErrorKind::kData, name_ + ": UTF-16 text, expected UTF-8: convert it (iconv -f UTF-16 -t UTF-8)");
}

// Drops the bytes that were already returned and appends the next block. Returns false at the end of the source.
bool RecordReader::fill() {
  dropped_ += position_;
  buffer_.erase(0, position_);
  position_ = 0;
  const size_t old = buffer_.size();
  buffer_.resize(old + kBlockBytes);
  size_t n = 0;
  try {
    if (!cut_) n = bytes_->read(std::span(buffer_).subspan(old));
  } catch (const CutSource&) {
    cut_ = true;
  }
  buffer_.resize(old + n);
  return n > 0;
}

bool RecordReader::next(RawRecord& record) {
  while (true) {
    record = RawRecord{};
    try {
      if (!(container_ == Container::kValues ? next_value(record) : next_delimited(record))) return false;
    } catch (const Error&) {
      if (!cut_) throw;  // the incomplete last value of a truncated source is no error
      return false;
    }
    if (cut_ && record.unterminated && container_ == Container::kDocuments) return false;
    if (container_ == Container::kDocuments) record.text = trimmed(record.text);
    if (record.text.ends_with('\r')) record.text.remove_suffix(1);
    if (record.too_long || !trimmed(record.text).empty()) return true;
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
    // Keeps the last bytes of the block, because a delimiter may begin in them. Drops all other bytes of a record that
    // is too long.
    const size_t keep = std::min(buffer_.size() - position_, delimiter_.empty() ? 0 : delimiter_.size() - 1);
    if (buffer_.size() - position_ > max_record_bytes_ + keep) {
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

bool RecordReader::next_value(RawRecord& record) {
  const auto broken = [&](const std::string& what) {
    throw Error(ErrorKind::kData, name_ + ": neither a JSON array nor JSON objects one after another: " + what +
                                      " near byte " + std::to_string(dropped_ + position_));
  };
  const auto peek = [&]() -> int {  // returns the next non-blank byte, or -1 at the end
    while (true) {
      const size_t at = buffer_.find_first_not_of(kBlank, position_);
      position_ = at == std::string::npos ? buffer_.size() : at;
      if (at != std::string::npos) return static_cast<unsigned char>(buffer_[at]);
      if (!fill()) return -1;
    }
  };
  if (array_ == ArrayState::kEnd) return false;
  if (array_ == ArrayState::kStart) {
    const int first = peek();
    if (first != '[' && first != '{') broken("expected '[' or '{'");
    array_ = first == '[' ? ArrayState::kInside : ArrayState::kNone;
    position_ += first == '[';
  } else if (array_ == ArrayState::kInside) {
    if (peek() == ',')
      ++position_;
    else if (peek() != ']')
      broken("expected ',' or ']'");
  }
  const int next = peek();
  if (array_ == ArrayState::kNone) {
    if (next == -1) return false;
    if (next != '{') broken("expected '{'");
  } else if (next == ']') {
    ++position_;
    array_ = ArrayState::kEnd;
    if (peek() != -1) broken("found more after ']'");
    return false;
  }
  if (!find_value_end(record)) broken("the source ends inside a value");
  record.number = ++number_;
  return true;
}

// Finds the end of the next value by counting brackets outside strings, and puts the value into `record`. The parser
// checks later that it is valid JSON. Returns false if the source ends inside the value.
bool RecordReader::find_value_end(RawRecord& record) {
  int64_t depth = 0;
  bool in_string = false, escaped = false;
  for (size_t i = position_;; ++i) {
    if (i == buffer_.size()) {
      if (buffer_.size() - position_ > max_record_bytes_) {
        record.too_long = true;
        position_ = buffer_.size();
      }
      i -= position_;
      if (!fill()) return false;
    }
    const char c = buffer_[i];
    size_t end = 0;
    if (in_string) {
      if (escaped)
        escaped = false;
      else if (c == '\\')
        escaped = true;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      end = i;  // buffer_[i] is the delimiter after the value
    } else if (c == '}' || c == ']') {
      --depth;
      if (depth == 0 && array_ == ArrayState::kNone) end = i + 1;
    }
    if (end == 0) continue;
    record.too_long |= end - position_ > max_record_bytes_;
    if (!record.too_long) record.text = trimmed(std::string_view(buffer_).substr(position_, end - position_));
    position_ = end;
    return true;
  }
}

Container guess_container(const std::string& name, std::string_view head, size_t max_record_bytes) {
  const std::string extension = traffic_extension(name);
  if (extension == ".jsonl" || extension == ".ndjson") return Container::kLines;
  const std::string_view all = trimmed(head);
  if (all.starts_with('[')) {
    const std::string_view first = trimmed(all.substr(1));
    if (first.empty() || first.starts_with('{')) return Container::kValues;
  }
  int lines = 0, objects = 0;
  while (lines < kDetectLines && !head.empty()) {
    const size_t end = head.find('\n');
    const std::string_view line = head.substr(0, end), text = trimmed(line);
    head.remove_prefix(end == std::string_view::npos ? head.size() : end + 1);
    if (text.empty()) continue;
    if (lines == 0 && goes_on(text, trimmed(head))) return Container::kValues;
    // A truncated or overlong line still counts as JSON; it is rejected later with the exact reason.
    objects += line.size() > max_record_bytes || text.starts_with('{') ? 1 : 0;
    ++lines;
  }
  return objects * 2 > lines || extension == ".json" ? Container::kLines : Container::kDocuments;
}

}  // namespace specdec::data
