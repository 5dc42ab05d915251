// The monitor's memory: one SQLite file that only its user may read (0600), with one connection, one writer and no
// secrets. The history is append-only. Changes are durable before a verdict is reported (journal DELETE, synchronous
// EXTRA). A damaged file is an error and is never overwritten. A file of an older version is upgraded and loses the
// secrets that it held; a file of version 1 is first copied to <file>.v1, also without secrets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/read/source.h"
#include "monitor/statistics/measurement.h"

namespace specdec::monitor {

struct HistoryEntry {
  int64_t id = 0, time = 0;
  std::string verdict, package;
  Json evidence;
};

// A recorded transition of the loop's state machine, with its cause.
struct TransitionEntry {
  int64_t id = 0, time = 0;
  std::string from, to, event, reason;
  Json evidence;
};

// An action outside the monitor. It is recorded before it begins, together with its cause, and its end is recorded too.
// Actions with the same key run only once, except that a failed or interrupted attempt may be repeated.
struct ActionEntry {
  int64_t id = 0;
  std::string key, kind;           // `key` is unique: repeated requests for the same action have the same key
  Json payload;                    // everything needed to do the action after a restart
  int64_t created = 0, ended = 0;  // unix seconds, 0 = not yet
  int64_t started = 0;             // when the current attempt began, 0 = none is under way
  int64_t attempts = 0;
  std::optional<int> code;  // exit code or HTTP status of the last attempt
  std::string outcome;      // one line about the last attempt
};

class State {
 public:
  enum class Open { kOrCreate, kExisting };
  // Throws Error(kData) for a file that is not a monitor state, is damaged, has a newer version, has triggers or views
  // that are not the monitor's own, or (with kExisting) does not exist. Throws Error(kNetwork), which means "try again"
  // (exit 75), while another monitor holds the file; Error(kIo) if the file cannot be created.
  explicit State(const std::filesystem::path& file, Open open = Open::kOrCreate, int patience_ms = 5000);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string value(const std::string& key) const;  // returns "" if the key is not set
  void set_value(const std::string& key, const std::string& value);

  int64_t epoch() const;  // number of restarts of the detectors so far

  // Returns the position in the record file with this identity (file_identity()); the start of the file if none is
  // stored.
  FilePosition position(const std::string& identity) const;
  void set_position(const std::string& identity, const FilePosition& position);
  std::optional<Counters> counters(const std::string& url) const;
  void set_counters(const std::string& url, const Counters& counters);

  // kNoEvidence leaves `evidence` null, because evidence is much larger than the rest of a row.
  enum class Detail { kAll, kNoEvidence };
  void append(const HistoryEntry& entry);
  std::vector<HistoryEntry> history(int64_t newest, Detail detail = Detail::kAll) const;  // oldest first
  Json evidence_of(int64_t history_id) const;  // null if there is no such row

  int64_t append(const TransitionEntry& entry);                                                  // returns its id
  std::vector<TransitionEntry> transitions(int64_t newest, Detail detail = Detail::kAll) const;  // oldest first

  // Adds a measurement. It replaces an earlier one of the same ten minutes, unless the detectors were restarted in
  // between (another epoch). Of measurements more than 30 days old, only the last one of each hour is kept.
  void add(const Measurement& measurement);
  std::vector<Measurement> measurements() const;  // oldest first

  bool add_action(const ActionEntry& entry);  // returns false if the key exists already
  std::optional<ActionEntry> action(const std::string& key) const;
  std::vector<ActionEntry> pending_actions() const;                                           // oldest first
  std::vector<ActionEntry> actions_of(const std::string& kind, int64_t created_since) const;  // oldest first
  void start_action(int64_t id, int64_t time);                            // begins an attempt and counts it
  void record_attempt(int64_t id, int code, const std::string& outcome);  // ends the current attempt
  void end_action(int64_t id, int64_t time);

 private:
  friend class Transaction;  // groups changes; a change outside a Transaction is committed at once
  void begin();
  void commit();
  void rollback();

  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace specdec::monitor
