// The monitor's memory: one SQLite file, one connection, one writer. History is append-only. Durable before a verdict is told
// (journal DELETE, synchronous EXTRA); a damaged file is an error, never overwritten.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/source.h"

namespace specdec::monitor {

struct HistoryEntry {
  int64_t id = 0, time = 0;
  std::string verdict, package;
  Json evidence;
};

class State {
 public:
  enum class Open { kOrCreate, kExisting };
  // Throws Error(kData) for a file that is no state of ours, damaged, of a newer version, or missing (kExisting); Error(kNetwork)
  // (exit 75) if another monitor holds it; Error(kIo) if it cannot be created.
  explicit State(const std::filesystem::path& file, Open open = Open::kOrCreate, int patience_ms = 5000);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Everything between is committed together or not at all.
  void begin();
  void commit();
  void rollback();

  std::string value(const std::string& key) const;              // "" if unset
  void set_value(const std::string& key, const std::string& value);

  FilePosition position(const std::string& identity) const;   // of file_identity(); the start if unknown
  void set_position(const std::string& identity, const FilePosition& position);
  std::optional<Counters> counters(const std::string& url) const;
  void set_counters(const std::string& url, const Counters& counters);

  void append(const HistoryEntry& entry);
  std::vector<HistoryEntry> history(int64_t newest) const;      // oldest first

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace specdec::monitor
