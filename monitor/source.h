// Where acceptance comes from: record files, read on from where the last check stopped. Servers: scrape.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/schema/acceptance_record.h"
#include "base/secret.h"
#include "monitor/scrape.h"

namespace specdec::monitor {

// How far a record file has been read. Files are told apart by device and inode, so that a renamed one is read on and
// not again, and by the digest of their first bytes, so that a new file in the place of an old one is read from the
// start.
struct FilePosition {
  uint64_t offset = 0;
  std::string head;  // SHA-256 of the first min(256, offset) bytes, "" while offset is 0
  bool operator==(const FilePosition&) const = default;
};
// "device:inode". Throws Error(kData) if there is no such file.
std::string file_identity(const std::filesystem::path& file);

struct ReadFigures {
  int64_t records = 0, broken_lines = 0;
  std::string first_problem;  // of the broken lines: file, line number in this read, reason
};

// What names URLs and files in the state and in results: as they are shown, told apart by a number where that is the
// same.
std::vector<std::string> names_of(const std::vector<SecretUrl>& sources);

// The .jsonl files of a directory, and SGLang's request-metrics logs (not its subdirectories), oldest name first, or
// the file itself. Throws Error(kData) if missing or neither a regular file nor a directory.
std::vector<std::filesystem::path> record_files(const std::filesystem::path& source);

// Gives every whole new line's record to `take` (foreign_record.h: other engines' lines may have several) and moves
// `position` past it. A last line without its newline is a write in progress and is left for next time; other broken
// lines are counted. A file shorter than the position, or of another head, was replaced: it is read from the start.
// Lines over 1 MiB are broken. Throws Error(kNetwork) if `file` is not `identity` any more.
ReadFigures read_records(const std::filesystem::path& file, const std::string& identity, FilePosition& position,
                         const std::function<void(const AcceptanceRecord&)>& take);

}  // namespace specdec::monitor
