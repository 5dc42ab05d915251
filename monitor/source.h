// Where acceptance comes from: record files (read on from where the last check stopped) and a server's /metrics.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/schema/acceptance_record.h"

namespace specdec::monitor {

// How far a record file has been read. Files are told apart by device and inode, so that a renamed one is read on and not again, and by
// the digest of their first bytes, so that a new file in the place of an old one is read from the start.
struct FilePosition {
  uint64_t offset = 0;
  std::string head;   // SHA-256 of the first min(256, offset) bytes, "" while offset is 0
};
// "device:inode". Throws Error(kData) if there is no such file.
std::string file_identity(const std::filesystem::path& file);

struct ReadFigures {
  int64_t records = 0, broken_lines = 0;
  std::string first_problem;   // of the broken lines: file, line number in this read, reason
};

// The .jsonl files of a directory (not its subdirectories), oldest name first, or the file itself. Throws Error(kData) if missing
// or neither a regular file nor a directory.
std::vector<std::filesystem::path> record_files(const std::filesystem::path& source);

// Gives every whole new line's record to `take` and moves `position` past it. A last line without its newline is a write in
// progress and is left for next time; other broken lines are counted. A file shorter than the position, or of another head, was
// replaced: it is read from the start. Lines over 64 KiB are broken. Throws Error(kNetwork) if `file` is not `identity` any more.
ReadFigures read_records(const std::filesystem::path& file, const std::string& identity, FilePosition& position, const std::function<void(const AcceptanceRecord&)>& take);

// Counters of one scrape, summed over label sets (engines, replicas). Names without the "specdec:" or "vllm:" prefix.
struct Counters {
  bool any = false;                          // the series exist: absent is not zero
  double drafts = 0, drafted = 0, accepted = 0, generated = 0;
  std::vector<double> accepted_at, reached_at, overlap_sum_at;   // by position; reached and overlap only from specdec
  std::string draft, target;                 // of specdec:info
};

// An Error(kData) about what a URL answered. A type of its own, since another poll may get a better answer; a file stays as it is.
class PageError final : public Error {
 public:
  explicit PageError(const std::string& message) : Error(ErrorKind::kData, message) {}
};

// Prometheus text exposition 0.0.4. Throws PageError naming the line for malformed text, more than 100,000 lines or a position
// above 64.
Counters parse_exposition(const std::string& text, const std::string& where);

// new − old by counter; a counter that fell was reset by a restart, and counts from zero.
Counters difference(const Counters& now, const Counters& before);
Json to_json(const Counters& counters);
Counters counters_from_json(const Json& object, const std::string& where);

// GET: http(s) only, no redirect, 10 s to connect, 30 s in all, at most 16 MiB. A key that is not empty is sent
// as a bearer token. Throws Error(kNetwork).
std::string fetch(const std::string& url, const std::string& api_key = "");
bool is_url(const std::string& text);

}  // namespace specdec::monitor
