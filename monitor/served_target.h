// Which target is served, by the word of those who know: servers whose page or records name their target are believed
// about it. Another target than the package's is stale until somebody who knows says that the bound one is back, or
// another package fits what is served.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::monitor {

// Fingerprints as they are named: all 64 digits or, in records, the first 12.
bool is_fingerprint(const std::string& text);
bool same_target(const std::string& a,
                 const std::string& b);  // equal, or by the 12 and more digits that both have; "" is no target

struct NamedRecord {
  int64_t time = 0;
  std::string target;  // 12 digits
};

// The newest kMost records that name their target, in the order of their times.
class NewestRecords {
 public:
  static constexpr size_t kMost = 64;
  void add(int64_t time, const std::string& target);
  const std::vector<NamedRecord>& sorted() const { return records_; }

 private:
  std::vector<NamedRecord> records_;
};

// Names what the draft is bound to by the digest of the package and the fingerprint id of its target.
struct WatchedPair {
  std::string package, target;
};

// What was said in one look.
struct Claims {
  struct Server {
    std::string source, target;
    int64_t replicas = 1;
  };
  std::vector<Server> servers;  // pages, and an endpoint that names its fingerprint
  NewestRecords records;        // all of them, those of earlier looks too
  int64_t new_records = 0;      // that name a target
  void add(const std::string& source, const std::string& target);
};

// Who saw a target, the weakest first. The package's own copy says nothing of what is served.
enum class Witness { kCopy, kDirectory, kBytes, kEndpoint, kServer };

// What the look at the package's copy, at --target or at an endpoint without a fingerprint found.
struct Sighting {
  Witness by = Witness::kCopy;
  std::string stale;   // why it is another target, "" = it is the bound one
  std::string target;  // fingerprint of what was seen
};

struct ServedMemory {
  std::string package, bound;  // of the look before: digest and the target it is bound to
  std::string former;          // target of the package before that
  int64_t package_since = 0, rolling_since = 0;
  std::string stale, reason;        // the other target that is served, "" = none is known
  Witness by = Witness::kServer;    // who saw it
  int64_t stale_since = 0;          // when it was seen: what a record said before is no news
  std::vector<NamedRecord> newest;  // of the records that are read
};
Json to_json(const ServedMemory& memory);
// "" is the first time. Throws Error(kData).
ServedMemory served_memory_from_text(const std::string& text, const std::string& where);

struct ServedVerdict {
  std::string stale;    // why another target is served, "" = it is not known to be
  std::string wait;     // an update is under way: look again (exit 75), "" = none
  std::string target;   // fingerprint of the other target
  Json evidence;        // "evidence.served"
  ServedMemory memory;  // for the next look; its `newest` is to be kept only with the positions in the record files
};

inline constexpr int64_t kRollingPatienceSeconds = 86400;  // a longer update is none
inline constexpr size_t kEnoughNamed = 50;  // records in a row that name the bound target end a stale one

// The rule:
//   somebody names another target, nobody who runs names the bound one   stale at once
//   running servers name both                                             an update rolls: wait for at most a day, then
//   stale the package changed and its predecessor's target is still served      the same a target that was found stale
//   stays so until a witness at least as good names the bound one and
//                                                                         no server another, or the package is bound to
//                                                                         it
// Records tell what was served last: by the newest run of them, where an earlier run of another target is a switch and
// alternating runs of the last day are a mixed fleet. Records older than a day, fewer than kEnoughNamed of the bound
// target since a stale one, a switch where servers themselves name a target, and all of them where every server names
// the bound one tell nothing.
ServedVerdict judge_served(ServedMemory memory, const WatchedPair& pair, const Sighting& sighting, const Claims& claims,
                           int64_t now);

}  // namespace specdec::monitor
