// Decides which target is served, from /metrics pages and records that name their target. The bound target is the one
// for which the package's draft was validated. Any other served target is called stale, until reliable evidence shows
// the bound target again or another package fits the served target.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace specdec::monitor {

// Returns whether the text is a fingerprint: all 64 digits or, in records, the first 12.
bool is_fingerprint(const std::string& text);
// Returns whether two fingerprints agree in all digits of the shorter one. Unless both are equal, the shorter one needs
// at least 12 digits. "" is not a target.
bool same_target(const std::string& a, const std::string& b);

struct NamedRecord {
  int64_t time = 0;
  std::string target;  // a fingerprint; only its first 12 digits are kept
};

// The newest kMost records that name their target, ordered by time. A record with a time in the future gets the current
// time; otherwise it would stay the newest until then.
class NewestRecords {
 public:
  static constexpr size_t kMost = 64;
  void add(const NamedRecord& record, int64_t now);
  const std::vector<NamedRecord>& sorted() const { return records_; }

 private:
  std::vector<NamedRecord> records_;
};

// The digest of a package, and the fingerprint of the target that the package's draft is bound to.
struct WatchedPair {
  std::string package, target;
};

// The targets that servers and records name, collected in one check.
struct Claims {
  struct Server {
    std::string source, target;
    int64_t replicas = 1;
    bool is_endpoint = false;  // the server at --target: trusted by itself, not counted as a replica
  };
  std::vector<Server> servers;  // /metrics pages, and the endpoint, that name a target
  int64_t unnamed = 0;          // number of replicas, on all pages, that name no target
  NewestRecords records;        // the newest records that name a target, including those of earlier checks
  int64_t new_records = 0;      // number of new records that name a target
  void add(const std::string& source, const std::string& target);
  void add_endpoint(const std::string& url, const std::string& target);

 private:
  std::map<std::pair<std::string, std::string>, size_t> index_;  // (source, target) of a page → its index in `servers`
};

// The kinds of evidence (witnesses) of a target, the weakest first. kCopy, the package's own copy of the target, is no
// evidence of what is served.
enum class Witness { kCopy, kDirectory, kBytes, kEndpoint, kServer };

// The target as seen without the servers' pages and records: in the package's copy, in the directory at --target, or at
// an endpoint that gives no fingerprint.
struct Sighting {
  Witness by = Witness::kCopy;
  std::string stale;   // why `target` is not the bound target, "" = it is the bound target
  std::string target;  // fingerprint of the target that was seen
};

struct ServedMemory {
  std::string package, bound;  // at the last check: the digest of the package, and the target of its draft
  std::string former;          // target of the previous package, "" = the same target
  int64_t package_since = 0, rolling_since = 0;
  std::string stale, reason;      // fingerprint of the other target that is served, and the evidence for it; "" = none
  Witness by = Witness::kServer;  // the kind of evidence of the stale target
  int64_t stale_since = 0;        // when the stale target was last seen; older records do not count
  // The stale target of the current alarm, and when the alarm began. Another stale target raises a new alarm only after
  // a day.
  std::string alarm;
  int64_t alarm_since = 0;
  std::vector<NamedRecord> newest;  // the newest records that name a target
};
Json to_json(const ServedMemory& memory);
// Parses a memory from the state. Returns an empty memory for "", as at the first check. Throws Error(kData).
ServedMemory served_memory_from_text(const std::string& text, const std::string& where);

struct ServedVerdict {
  std::string stale;  // why another target is served, "" = no other target is known to be served
  // Why a rolling update seems to be under way, so that the check ends with "try again" (exit 75); "" = none.
  std::string wait;
  std::string target;  // fingerprint of the other target
  Json evidence;       // for the field "evidence.served" of the check's result
  // Memory for the next check. Store memory.newest only together with the positions in the record files.
  ServedMemory memory;
};

inline constexpr int64_t kRollingPatienceSeconds = 86400;  // after this time a rolling update counts as another target
inline constexpr size_t kEnoughNamed = 50;  // consecutive records that must name the bound target to end an alarm
// The least evidence of another target: kEnoughOther records that name it (consecutive, or among the newest records),
// or 1 / kFewReplicas of the replicas. Less evidence is only reported as "pending".
inline constexpr size_t kEnoughOther = 10;
inline constexpr int64_t kFewReplicas = 8;

// Judges which target is served: the bound target, for which the package's draft was made, or another one.
// * Another target is called stale at once if enough evidence names it and no running server names the bound target.
//   Enough are /metrics pages that name it for more than half of the replicas of all pages together, or kEnoughOther
//   records in a row.
// * If running servers name both targets, or up to half of the replicas name another one, a rolling update is under
//   way. The result is to wait for at most a day; after that the other target is stale. The same holds if the package
//   has changed and the target of the previous package is still served.
// * If only few replicas or records name another target, the evidence reports it as "pending", without other effects.
// * A stale target stays stale until evidence at least as strong names the bound target and no server names another
//   target, or until a package bound to the served target is in use.
// Records show which target was served last: the target of the newest consecutive records. If records of another target
// precede them, the servers switched targets; if records of two targets alternate during the last day, some servers
// have one target and some the other. Records are ignored in four cases:
// * They are older than a day.
// * The target was found stale, and since then fewer than kEnoughNamed records name the bound target.
// * They show a switch, while servers name a target themselves.
// * Every server that names a target names the bound one.
ServedVerdict judge_served(ServedMemory memory, const WatchedPair& pair, const Sighting& sighting, const Claims& claims,
                           int64_t now);

}  // namespace specdec::monitor
