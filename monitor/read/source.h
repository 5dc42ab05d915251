// Reads acceptance records from files, continuing where the last check stopped. scrape.h reads counters from servers.
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
#include "monitor/read/scrape.h"

namespace specdec::monitor {

// The position up to which a record file has been read. The state stores it by the file's device and inode, so that a
// renamed file is not read again. `head` shows whether another file has replaced the one that was read; such a file is
// read from the start.
struct FilePosition {
  uint64_t offset = 0;
  std::string head;  // SHA-256 of the first min(256, offset) bytes, "" while offset is 0
  bool operator==(const FilePosition&) const = default;
};
// Returns "device:inode". Throws Error(kData) if the file does not exist.
std::string file_identity(const std::filesystem::path& file);

struct ReadFigures {
  int64_t records = 0, broken_lines = 0;
  std::string first_problem;  // the first broken line: file, line number in this read, reason
};

// Returns the names of sources for the state and for results: SecretUrl::shown(), with a number appended where two
// names would be equal.
std::vector<std::string> names_of(const std::vector<SecretUrl>& sources);

// Returns the .jsonl files and SGLang's request-metrics logs of a directory (not of its subdirectories), sorted by
// name; for a file, returns the file itself. Throws Error(kData) if the source does not exist or is neither a regular
// file nor a directory.
std::vector<std::filesystem::path> record_files(const std::filesystem::path& source);

// Passes the record of every complete new line to `take` and moves `position` past the line. Lines of other engines may
// have several records (foreign_record.h). A last line without a newline is still being written and is left for the
// next check. Other malformed lines, and lines over 1 MiB, are counted as broken. A file that is shorter than the
// position, or has another head, was replaced and is read from the start. Throws Error(kNetwork), which means "try
// again", if `file` no longer has `identity`, because it was replaced just now.
ReadFigures read_records(const std::filesystem::path& file, const std::string& identity, FilePosition& position,
                         const std::function<void(const AcceptanceRecord&)>& take);

}  // namespace specdec::monitor
