// The monitor's memory: one SQLite file of its user alone (0600), one connection, one writer, without secrets. History
// is append-only. Durable before a verdict is told (journal DELETE, synchronous EXTRA); a damaged file is an error,
// never overwritten; one of an older version is brought forward and loses the secrets that it held, one of version 1 is
// copied to <file>.v1 before, which has none either.
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

// What brought the loop from one state to another.
struct TransitionEntry {
  int64_t id = 0, time = 0;
  std::string from, to, event, reason;
  Json evidence;
};

// Something to be done outside, written down with what makes it necessary and before it is begun: started at most once
// a key unless it has to be tried again, and its end recorded.
struct ActionEntry {
  int64_t id = 0;
  std::string key, kind;           // key: SHA-256, unique
  Json payload;                    // all that is needed to do it after a restart
  int64_t created = 0, ended = 0;  // unix seconds, 0 = not yet
  int64_t started = 0;             // the attempt that is under way, 0 = none
  int64_t attempts = 0;
  std::optional<int> code;  // of the last attempt: exit code, HTTP status
  std::string outcome;      // of the last attempt, one line
};

class State {
 public:
  enum class Open { kOrCreate, kExisting };
  // Throws Error(kData) for a file that is no state of ours, damaged, of a newer version, or missing (kExisting);
  // Error(kNetwork) (exit 75) if another monitor holds it; Error(kIo) if it cannot be created.
  explicit State(const std::filesystem::path& file, Open open = Open::kOrCreate, int patience_ms = 5000);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string value(const std::string& key) const;  // "" if unset
  void set_value(const std::string& key, const std::string& value);

  FilePosition position(const std::string& identity) const;  // of file_identity(); the start if unknown
  void set_position(const std::string& identity, const FilePosition& position);
  std::optional<Counters> counters(const std::string& url) const;
  void set_counters(const std::string& url, const Counters& counters);

  void append(const HistoryEntry& entry);
  std::vector<HistoryEntry> history(int64_t newest) const;  // oldest first

  int64_t append(const TransitionEntry& entry);                    // its id
  std::vector<TransitionEntry> transitions(int64_t newest) const;  // oldest first
  bool add_action(const ActionEntry& entry);                       // false: that key is there already
  std::optional<ActionEntry> action(const std::string& key) const;
  std::vector<ActionEntry> pending_actions() const;                                           // oldest first
  std::vector<ActionEntry> actions_of(const std::string& kind, int64_t created_since) const;  // oldest first
  void start_action(int64_t id, int64_t time);                                                // counts an attempt
  void record_attempt(int64_t id, int code, const std::string& outcome);  // none is under way any more
  void end_action(int64_t id, int64_t time);

 private:
  friend class Transaction;  // groups changes, which are else committed one by one
  void begin();
  void commit();
  void rollback();

  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace specdec::monitor
