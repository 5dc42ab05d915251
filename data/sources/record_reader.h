// Streams the records of one traffic source: lines of JSONL, JSON values, or documents of plain text. Memory is bounded
// by the longest record allowed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/sources/byte_source.h"

namespace specdec::data {

// kLines: JSONL. kValues: the elements of a JSON array, or objects one after another, each over any number of lines.
// kDocuments: plain text.
enum class Container { kLines, kValues, kDocuments };

struct RawRecord {
  std::string_view text;  // without its delimiter; valid until the next call; empty if too_long
  int64_t number = 0;     // line number (from 1, empty lines counted), or number of the value or document (from 1)
  bool too_long = false;  // longer than the limit; the record is skipped up to its delimiter
  // The source ended without the delimiter, so the writer of a JSONL file may have been cut off.
  bool unterminated = false;
};

struct ReaderOptions {
  std::optional<Container> container;  // nothing = guess_container decides by name and first lines
  bool may_be_documents = true;        // false: a source that looks like plain text is read as kLines
  std::string separator;               // kDocuments only; "" = the whole source is one document
  size_t max_record_bytes = 16 << 20;
};

class RecordReader {
 public:
  // Throws what open_bytes throws, and Error(kData) for UTF-16.
  RecordReader(const std::string& source, ReaderOptions options);

  Container container() const { return container_; }

  // Reads the next record that is not blank; returns false at the end of the source. Removes a byte-order mark, a CR
  // before LF and, for documents, surrounding white space. For kValues, throws Error(kData) if there is anything but
  // JSON between the values.
  bool next(RawRecord& record);
  // Returns whether the source's compressed data end in the middle. next() returns the whole records before that point
  // and, for kLines, also the truncated line.
  bool is_cut() const { return cut_; }

  uint64_t stored_done() const { return bytes_->stored_done(); }
  uint64_t stored_size() const { return bytes_->stored_size(); }
  // Reads whatever next() has left and returns the SHA-256 of the whole stored source.
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
  uint64_t dropped_ = 0;  // bytes that were dropped from the front of buffer_
  std::string buffer_;
  bool cut_ = false;
  size_t position_ = 0;  // offset of the first byte that next() has not returned
  int64_t number_ = 0;
  enum class ArrayState { kStart, kInside, kEnd, kNone } array_ = ArrayState::kStart;
};

// Guesses the kind of records in a source. The names .jsonl and .ndjson (also with .gz or .zst) mean lines. Otherwise
// the first 100 lines of `head` decide. The source holds values if it begins with '[' and an object, or with an object
// that continues on the next line. It holds lines if most non-blank lines begin like an object, or if the name ends in
// .json. Anything else is documents.
Container guess_container(const std::string& name, std::string_view head, size_t max_record_bytes);

}  // namespace specdec::data
