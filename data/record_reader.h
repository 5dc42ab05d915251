// Streams the records of one source of traffic: lines of JSONL, JSON values, or documents of plain text. Memory is
// bounded by the longest record allowed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/byte_source.h"

namespace specdec::data {

// kValues: the elements of a JSON array, or objects one after another, over any number of lines.
enum class Container { kLines, kValues, kDocuments };

struct RawRecord {
  std::string_view text;      // without its delimiter; valid until the next call. Empty if too_long
  int64_t number = 0;         // line (from 1, empty lines counted), or value or document (from 1)
  bool too_long = false;      // longer than the limit: skipped up to its delimiter
  bool unterminated = false;  // the source ended before the delimiter did (a JSONL writer may have been cut off)
};

struct ReaderOptions {
  std::optional<Container> container;  // else told by name and first lines
  bool may_be_documents = true;        // false: what looks like plain text is lines of a log
  std::string separator;               // kDocuments only; "" = the whole source is one document
  size_t max_record_bytes = 16 << 20;
};

class RecordReader {
 public:
  // Throws what open_bytes throws, and Error(kData) for UTF-16.
  RecordReader(const std::string& source, ReaderOptions options);

  Container container() const { return container_; }

  // Next record that is not blank; false at the end of the source. A byte-order mark, CR before LF and, for documents,
  // white space around are removed. kValues: throws Error(kData) when what is between the values is not JSON.
  bool next(RawRecord& record);

  uint64_t stored_done() const { return bytes_->stored_done(); }
  uint64_t stored_size() const { return bytes_->stored_size(); }
  // SHA-256 of the whole source as it is stored; reads what next() has not.
  std::string finish_sha256() { return bytes_->finish_sha256(); }

 private:
  bool fill();
  void refuse_utf16() const;
  bool next_delimited(RawRecord& record);
  bool next_value(RawRecord& record);
  bool find_value_end(RawRecord& record);

  std::string name_;
  std::unique_ptr<ByteSource> bytes_;
  Container container_ = Container::kLines;
  std::string delimiter_;
  size_t max_record_bytes_;
  uint64_t dropped_ = 0;  // bytes before the buffer
  std::string buffer_;
  size_t position_ = 0;  // of the first byte not handed out
  int64_t number_ = 0;
  enum class ArrayState { kStart, kInside, kEnd, kNone } array_ = ArrayState::kStart;
};

// What a source holds: by name (.jsonl, .ndjson, also before .gz and .zst: lines) or by the first 100 lines of `head`:
// values if they begin with '[' and an object or with an object that goes on over the line; lines if most that are not
// blank begin like one or the name ends in .json; else documents.
Container guess_container(const std::string& name, std::string_view head, size_t max_record_bytes);

}  // namespace specdec::data
