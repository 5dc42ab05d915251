// Streams the records of one traffic file: lines of JSONL, elements of a JSON array, or documents of plain text. Memory is
// bounded by the longest record allowed; the file's SHA-256 is taken while it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/sha256.h"

namespace specdec::data {

enum class Container { kLines, kArray, kDocuments };

struct RawRecord {
  std::string_view text;    // without its delimiter; valid until the next call. Empty if too_long
  int64_t number = 0;       // line (from 1, empty lines counted), or element or document (from 1)
  bool too_long = false;    // longer than the limit: skipped up to its delimiter
  bool unterminated = false;  // the file ended before the delimiter did (a JSONL writer may have been cut off)
};

class RecordReader {
 public:
  // Throws Error(kData): missing, not a regular file (FIFO, directory, device), UTF-16, compressed or Parquet content.
  // `separator` is used by kDocuments only; "" = the whole file is one document.
  RecordReader(const std::filesystem::path& path, Container container, std::string separator, size_t max_record_bytes);

  // Next record that is not blank; false at the end of the file. A byte-order mark, CR before LF and, for documents, white space
  // around are removed. kArray: throws Error(kData) when what is between the elements is not JSON.
  bool next(RawRecord& record);

  uint64_t bytes_done() const { return file_offset_ - (buffer_.size() - position_); }
  uint64_t size() const { return file_.size(); }
  // SHA-256 of the whole file; reads what next() has not.
  std::string finish_sha256();

 private:
  bool fill();
  bool next_delimited(RawRecord& record);
  bool next_element(RawRecord& record);

  InputFile file_;
  Container container_;
  std::string delimiter_;
  size_t max_record_bytes_;
  Sha256 sha_;
  uint64_t file_offset_ = 0;
  std::string buffer_;
  size_t position_ = 0;      // of the first byte not handed out
  int64_t number_ = 0;
  enum class ArrayState { kStart, kInside, kEnd } array_ = ArrayState::kStart;
};

// What a file holds: by name (.jsonl, .ndjson: lines) or by its first 100 lines: an array if it begins with '[' and an object,
// lines if most of the lines that are not blank begin like one or the name ends in .json, else documents. Throws as the reader does.
Container detect_container(const std::filesystem::path& path, size_t max_record_bytes);

bool is_valid_utf8(std::string_view text);
int64_t count_characters(std::string_view utf8);  // Unicode code points

}  // namespace specdec::data
