#include "data/sources/csv_bytes.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "base/json.h"

namespace specdec::data {

namespace {

constexpr size_t kBlockBytes = 64 << 10, kMaxHeaderBytes = 64 << 10;
// Every JSON line repeats the column names, so it may be much longer than its CSV row. Conversion pauses when this many
// bytes are waiting to be read.
constexpr size_t kMaxWaitingBytes = 1 << 20;

class CsvBytes final : public ByteSource {
 public:
  CsvBytes(std::string name, std::unique_ptr<ByteSource> text, char separator)
      : name_(std::move(name)), text_(std::move(text)), separator_(separator), block_(kBlockBytes), names_(1) {}

  size_t read(std::span<char> out) override {
    while (given_ == lines_.size()) {
      lines_.clear();
      given_ = 0;
      if (ended_) return 0;
      if (at_ == text_end_ && !last_block_) next_block();
      take_block();
    }
    const size_t n = std::min(out.size(), lines_.size() - given_);
    std::memcpy(out.data(), lines_.data() + given_, n);
    given_ += n;
    return n;
  }
  bool is_table() const override { return true; }
  uint64_t stored_done() const override { return text_->stored_done(); }
  uint64_t stored_size() const override { return text_->stored_size(); }
  std::string finish_sha256() override { return text_->finish_sha256(); }

 private:
  enum class State { kStart, kPlain, kQuoted, kQuote, kReturn };  // kQuote: after a quote inside a quoted field

  void next_block() {
    const bool at_start = record_ == 0 && field_ == 0 && names_[0].empty();
    // The first block must contain any byte-order mark and the whole first line.
    size_t n = 0, got = 0;
    do {
      got = text_->read(std::span(block_).subspan(n));
      n += got;
    } while (at_start && got > 0 && n < block_.size() && std::string_view(block_.data(), n).find('\n', 3) > n);
    const std::string_view text(block_.data(), n);
    at_ = at_start && text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    text_end_ = n;
    last_block_ = n == 0;
    if (separator_ == '\0') separator_ = separator_of(text.substr(at_));
  }

  // Returns the separator of the header: a semicolon if there is one and no comma outside quotes, else a comma.
  static char separator_of(std::string_view text) {
    bool quoted = false, semicolon = false;
    text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
    for (const char c : text) {
      quoted ^= c == '"';
      if (quoted) continue;
      if (c == ',') return ',';
      semicolon |= c == ';';
      if (c == '\n' || c == '\r') break;
    }
    return semicolon ? ';' : ',';
  }

  void take_block() {
    const std::string_view text(block_.data(), text_end_);
    while (at_ < text_end_ && lines_.size() < kMaxWaitingBytes) {
      size_t end = at_;
      while (open_ && end < text_end_ && is_plain(text[end])) ++end;
      if (end > at_)
        lines_.append(text.substr(at_, end - at_));
      else
        take(text[end++]);
      at_ = end;
    }
    ended_ = last_block_ && at_ == text_end_;
    if (!ended_) return;
    if (state_ == State::kQuoted) throw_malformed("it ends inside a quoted field");
    if (state_ != State::kStart || field_ > 0) end_record();
  }

  // Returns true if `c` can be copied unchanged into the current value.
  bool is_plain(char c) const {
    return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\' &&
           (state_ == State::kQuoted || (state_ == State::kPlain && c != separator_));
  }

  void take(char c) {
    switch (state_) {
      case State::kQuoted:
        if (c == '"')
          state_ = State::kQuote;
        else
          put(c);
        return;
      case State::kReturn:
        if (c != '\n') throw_malformed("a carriage return without a line feed");
        return end_record();
      case State::kQuote:
        if (c == '"') {
          put(c);
          state_ = State::kQuoted;
          return;
        }
        break;
      case State::kStart:
        if (c == '\n' && field_ == 0) return;  // an empty line
        if (c == '"') {
          state_ = State::kQuoted;
          return;
        }
        break;
      case State::kPlain:
        break;
    }
    if (c == separator_) return end_field();
    if (c == '\n') return end_record();
    if (c == '\r') {
      if (state_ == State::kStart && field_ == 0) return;
      state_ = State::kReturn;
      return;
    }
    if (state_ == State::kQuote) throw_malformed("text after a quoted field");
    if (c == '"') throw_malformed("a quote inside a field without quotes");
    state_ = State::kPlain;
    put(c);
  }

  // Appends a character to the current value, or to the current column name while the header is read.
  void put(char c) {
    if (record_ == 0) {
      names_.back() += c;
      if (++header_bytes_ > kMaxHeaderBytes)
        throw_malformed("a header of more than " + std::to_string(kMaxHeaderBytes) + " bytes");
      return;
    }
    if (!open_) begin_field("\"");
    open_ = true;
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      lines_.append(1, '\\').append(1, c);
    else if (byte < 0x20)
      lines_.append("\\u00").append(1, "01"[byte >> 4]).append(1, "0123456789abcdef"[byte & 15]);
    else
      lines_ += c;
  }

  void begin_field(const char* value) {
    if (field_ >= keys_.size())
      throw_malformed("more fields than the " + std::to_string(keys_.size()) + " of the header");
    lines_.append(keys_[field_]).append(value);
  }

  void end_field() {
    if (record_ == 0)
      names_.emplace_back();
    else if (open_)
      lines_ += '"';
    else
      begin_field("null");
    open_ = false;
    state_ = State::kStart;
    ++field_;
  }

  void end_record() {
    if (record_ == 0) {
      make_keys();
    } else {
      end_field();
      if (field_ != keys_.size())
        throw_malformed(std::to_string(field_) + " fields, expected the " + std::to_string(keys_.size()) +
                        " of the header");
      lines_ += "}\n";
    }
    ++record_;
    field_ = 0;
    state_ = State::kStart;
  }

  void make_keys() {
    std::set<std::string> seen;
    for (const std::string& name : names_) {
      if (!seen.insert(name).second) throw_malformed("two columns of one name");
      keys_.push_back((keys_.empty() ? "{" : ",") + Json(name).dump(-1, ' ', false, Json::error_handler_t::replace) +
                      ":");
    }
  }

  [[noreturn]] void throw_malformed(const std::string& what) const {
    throw Error(ErrorKind::kData, name_ + ": " + (record_ == 0 ? "header" : "row " + std::to_string(record_)) + ": " +
                                      what +
                                      ": expected CSV as in RFC 4180 (quotes doubled inside quotes), here with " +
                                      separator_name() + " between the fields: export it again, or as JSONL");
  }

  std::string separator_name() const {
    return separator_ == '\t' ? "tabs" : separator_ == ';' ? "semicolons" : "commas";
  }

  std::string name_;
  std::unique_ptr<ByteSource> text_;
  char separator_;  // NUL until the header has been seen
  std::vector<char> block_;
  size_t at_ = 0, text_end_ = 0;  // positions in block_
  bool last_block_ = false;
  std::vector<std::string> names_, keys_;  // keys_: {"name": for the first column and ,"name": for the others
  size_t header_bytes_ = 0;
  State state_ = State::kStart;
  int64_t record_ = 0;  // number of the current record; 0 = the header
  size_t field_ = 0;
  bool open_ = false;  // true once the current value has a character
  std::string lines_;
  size_t given_ = 0;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> csv_bytes(const std::string& name, std::unique_ptr<ByteSource> text, char separator) {
  return std::make_unique<CsvBytes>(name, std::move(text), separator);
}

}  // namespace specdec::data
