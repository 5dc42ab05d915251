#include "monitor/facts/served_target.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/schema/acceptance_range.h"
#include "monitor/read/few.h"

namespace specdec::monitor {

namespace {

constexpr size_t kShown = 12;
constexpr int64_t kAlarmSeconds = 86400;  // an alarm about one stale target lasts at least this long
constexpr int64_t kFreshSeconds = 86400;  // older records are ignored, because their target may no longer be served
constexpr std::array<const char*, 5> kWitnesses = {"copy", "directory", "bytes", "endpoint", "server"};

std::string brief(const std::string& target) { return target.substr(0, kShown); }

// Evidence of kind `finder` showed a served target other than the package's, which is since called stale. Returns
// whether that ends when evidence of kind `sees_bound` shows the package's target again.
bool ends(Witness finder, Witness sees_bound) {
  if (sees_bound == finder) return true;
  // The fingerprint that a server states only samples the weights, so it does not overrule a comparison of all bytes.
  if (sees_bound == Witness::kServer) return finder != Witness::kBytes;
  return sees_bound == Witness::kBytes && finder == Witness::kDirectory;
}

struct Other {
  Witness by;
  std::string target, reason;
  int64_t time;
};

// The evidence of one check: which kinds of evidence (witnesses) showed another target, and which showed the bound
// target (the package's).
struct Testimony {
  std::vector<Other> others;
  std::vector<Witness> bound;
  int64_t replicas = 0, of_another = 0;  // number of replicas on all pages, and of those that name another target
  bool is_divided = false;  // at least 1 / kFewReplicas and at most half of the replicas name another target
  std::string pending;      // description of evidence that is not sufficient yet

  bool server_says_bound() const { return std::find(bound.begin(), bound.end(), Witness::kServer) != bound.end(); }
  const Other* best() const {
    const auto found =
        std::max_element(others.begin(), others.end(), [](const Other& a, const Other& b) { return a.by < b.by; });
    return found == others.end() ? nullptr : &*found;
  }
};

std::string another(const std::string& who, const std::string& target, const std::string& bound) {
  return who + " another target than the draft was validated for (" + brief(target) + ", bound to " + brief(bound) +
         ")";
}

// Evaluates the newest consecutive records that name the same target. If records of another target precede them, the
// servers either switched targets or alternate between them. Records are ignored if every server that names a target
// names the bound target: the records then come from before a change, or from servers that were not queried.
void hear_records(const Claims& claims, const std::vector<const Claims::Server*>& servers, const ServedMemory& memory,
                  const std::string& bound, int64_t now, Testimony& t) {
  const std::vector<NamedRecord>& all = claims.records.sorted();
  const auto is_fresh = [now](const NamedRecord& r) { return r.time >= now - kFreshSeconds; };
  const auto is_bound = [&bound](const NamedRecord& r) { return same_target(r.target, bound); };
  const bool any_new = claims.new_records > 0;
  if ((!any_new && memory.stale.empty()) || all.empty() || !is_fresh(all.back())) return;
  if (!servers.empty() && std::all_of(servers.begin(), servers.end(),
                                      [&](const Claims::Server* s) { return same_target(s->target, bound); }))
    return;
  const std::string& newest = all.back().target;
  const auto is_newest = [&](const NamedRecord& r) { return r.target == newest; };
  const auto other = std::find_if_not(all.rbegin(), all.rend(), is_newest);
  const auto run = static_cast<size_t>(other - all.rbegin());
  const auto since = static_cast<size_t>(
      std::count_if(all.rbegin(), other, [&](const NamedRecord& r) { return r.time >= memory.stale_since; }));
  // `foreign` is the target, other than the bound one, that the newest records name. is_foreign() selects the fresh
  // records that name `foreign`.
  const std::string foreign = !same_target(newest, bound) ? newest : other != all.rend() ? other->target : "";
  const auto is_foreign = [&](const NamedRecord& r) { return is_fresh(r) && r.target == foreign; };
  const auto named = static_cast<size_t>(std::count_if(all.begin(), all.end(), is_foreign)),
             named_before = static_cast<size_t>(std::count_if(other, all.rend(), is_foreign));
  const bool alternates = run < kEnoughNamed && other != all.rend() && is_fresh(*other) && named >= kEnoughOther &&
                          named_before >= kEnoughOther / 2 && std::any_of(other, all.rend(), is_newest);
  // If servers name their target, their pages are more recent evidence than records that show a switch.
  if (!servers.empty() && !alternates) return;
  const std::string who = "the newest " + std::to_string(run) + " records name";
  if (!same_target(newest, bound)) {
    if (any_new && (run >= kEnoughOther || alternates))
      t.others.push_back({Witness::kServer, newest, another(who, newest, bound), all.back().time});
    else if (run < kEnoughOther && memory.stale.empty())
      t.pending = std::to_string(named) + (named == 1 ? " record names" : " records name") + " another target (" +
                  brief(newest) + "), " + std::to_string(kEnoughOther) + " in a row are believed";
  } else if (any_new && (memory.stale.empty() || since >= kEnoughNamed)) {
    t.bound.push_back(Witness::kServer);
  } else if (since > 0 && since < kEnoughNamed) {
    t.pending = std::to_string(since) + (since == 1 ? " record names" : " records name") + " the bound target again, " +
                std::to_string(kEnoughNamed) + " in a row end this";
  }
  if (!alternates || !memory.stale.empty()) return;
  if (same_target(newest, bound))
    t.others.push_back({Witness::kServer, other->target, another("records name", other->target, bound), other->time});
  else if (std::any_of(other, all.rend(), [&](const NamedRecord& r) { return is_fresh(r) && is_bound(r); }))
    t.bound.push_back(Witness::kServer);
}

// Counts the replicas of all pages. Returns the servers whose statements about their target are used: all servers that
// name a target. If only few replicas name another target than the bound one, the servers of these replicas are left
// out.
std::vector<const Claims::Server*> hear_pages(const Claims& claims, const std::string& bound, Testimony& t) {
  t.replicas = claims.unnamed;
  bool endpoint_says_another = false;
  for (const Claims::Server& s : claims.servers) {
    const bool is_other = !same_target(s.target, bound);
    endpoint_says_another |= s.is_endpoint && is_other;
    if (s.is_endpoint) continue;
    t.replicas += s.replicas;
    t.of_another += is_other ? s.replicas : 0;
  }
  const bool are_few = t.of_another * kFewReplicas < t.replicas;
  t.is_divided = !endpoint_says_another && t.of_another > 0 && !are_few && 2 * t.of_another <= t.replicas;
  if (are_few && t.of_another > 0)
    t.pending = std::to_string(t.of_another) + " of " + std::to_string(t.replicas) +
                " servers name another target, too few to be believed";
  std::vector<const Claims::Server*> believed;
  for (const Claims::Server& s : claims.servers)
    if (s.is_endpoint || !are_few || same_target(s.target, bound)) believed.push_back(&s);
  return believed;
}

Testimony hear(const Sighting& sighting, const Claims& claims, const ServedMemory& memory, const std::string& bound,
               int64_t now) {
  Testimony t;
  if (!sighting.stale.empty())
    t.others.push_back({sighting.by, sighting.target, sighting.stale, now});
  else if (sighting.by != Witness::kCopy)
    t.bound.push_back(sighting.by);
  std::vector<const Claims::Server*> servers = hear_pages(claims, bound, t);
  for (const Claims::Server* s : servers)
    if (same_target(s->target, bound))
      t.bound.push_back(Witness::kServer);
    else
      t.others.push_back({Witness::kServer, s->target, another(s->source + " serves", s->target, bound), now});
  hear_records(claims, servers, memory, bound, now, t);
  return t;
}

// Updates the memory for the package that is in the channel now. If the package has changed, the new one may be bound
// to the target that was called stale.
void take_package(ServedMemory& m, const std::string& package, const std::string& bound, int64_t now) {
  if (m.package != package) {
    m.former = m.package.empty() || same_target(m.bound, bound) ? "" : m.bound;
    m.package_since = now;
    if (m.by == Witness::kBytes) m.stale.clear();  // the comparison of all bytes has a new reference for a new package
  }
  if (m.by != Witness::kBytes && same_target(m.stale, bound)) m.stale.clear();
  m.package = package;
  m.bound = bound;
  m.package_since = std::min(m.package_since, now);  // times in the future come from a clock that was wrong
  m.rolling_since = std::min(m.rolling_since, now);
  m.stale_since = m.stale.empty() ? 0 : std::min(m.stale_since, now);
  m.alarm_since = std::min(m.alarm_since, now);
}

Json evidence_of(const Claims& claims, const std::string& bound, const Testimony& t) {
  Json named = Json::array();
  for (const Claims::Server& s : claims.servers)
    if (named.size() < Few::kKept)
      named.push_back({{"source", s.source}, {"target", brief(s.target)}, {"replicas", s.replicas}});
  Json evidence = {{"bound", brief(bound)}, {"named", named}};
  if (claims.servers.size() > named.size()) evidence["named_more"] = claims.servers.size() - named.size();
  if (!claims.records.sorted().empty())
    evidence["newest_record"] = {{"target", claims.records.sorted().back().target},
                                 {"time", claims.records.sorted().back().time}};
  if (!t.pending.empty()) evidence["pending"] = t.pending;
  return evidence;
}

}  // namespace

bool is_fingerprint(const std::string& text) {
  return text.size() >= kShown && text.size() <= 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool same_target(const std::string& a, const std::string& b) {
  if (!a.empty() && a == b) return true;
  const size_t digits = std::min(a.size(), b.size());
  return digits >= kShown && a.compare(0, digits, b, 0, digits) == 0;
}

void NewestRecords::add(const NamedRecord& record, int64_t now) {
  const int64_t time = std::min(record.time, now);
  if (records_.size() == kMost && time < records_.front().time) return;
  const auto after = std::upper_bound(records_.begin(), records_.end(), time,
                                      [](int64_t t, const NamedRecord& r) { return t < r.time; });
  records_.insert(after, {time, brief(record.target)});
  if (records_.size() > kMost) records_.erase(records_.begin());
}

void Claims::add(const std::string& source, const std::string& target) {
  const auto [known, is_new] = index_.try_emplace({source, target}, servers.size());
  if (is_new)
    servers.push_back({.source = source, .target = target});
  else
    ++servers[known->second].replicas;
}

void Claims::add_endpoint(const std::string& url, const std::string& target) {
  servers.push_back({.source = url, .target = target, .is_endpoint = true});
}

ServedVerdict judge_served(ServedMemory m, const WatchedPair& pair, const Sighting& sighting, const Claims& claims,
                           int64_t now) {
  const std::string& bound = pair.target;
  take_package(m, pair.package, bound, now);
  const Testimony t = hear(sighting, claims, m, bound, now);
  ServedVerdict out;
  out.evidence = evidence_of(claims, bound, t);
  const Other* other = t.best();
  const bool mixed = other && other->by == Witness::kServer && (t.server_says_bound() || t.is_divided);
  const bool left_behind = other && other->by == Witness::kServer && !mixed && same_target(other->target, m.former) &&
                           now - m.package_since < kRollingPatienceSeconds;
  if (m.stale.empty() && (mixed || left_behind)) {
    if (m.rolling_since == 0) m.rolling_since = left_behind ? m.package_since : now;
    if (now - m.rolling_since < kRollingPatienceSeconds)
      out.wait =
          left_behind
              ? other->reason +
                    ": the package in the channel has changed and its target is not served yet; the next check looks "
                    "again"
              : "a rolling update: " + other->reason +
                    (t.server_says_bound() ? ", and others still serve the bound one" : ", and others do not") +
                    (t.replicas ? ": " + std::to_string(t.of_another) + " of " + std::to_string(t.replicas) + " servers"
                                : "") +
                    "; the next check looks again";
  }
  if (!mixed && !left_behind) m.rolling_since = 0;
  if (out.wait.empty() && other && other->by == Witness::kCopy) {
    // A damaged package copy says nothing about which target is served, so it is reported at every check and not
    // remembered.
    out.stale = other->reason;
    out.target = other->target;
  } else if (out.wait.empty() && other) {
    if (m.stale.empty() || !same_target(m.stale, other->target) || m.by < other->by) m.by = other->by;
    m.stale = other->target;
    m.reason = other->reason;
    m.stale_since = std::max(m.stale_since, other->time);
  } else if (!m.stale.empty() &&
             std::any_of(t.bound.begin(), t.bound.end(), [&](Witness w) { return ends(m.by, w); })) {
    m.stale.clear();
    m.reason.clear();
    m.stale_since = 0;
  }
  if (!m.stale.empty()) {
    if (m.alarm.empty() || (!same_target(m.alarm, m.stale) && now - m.alarm_since >= kAlarmSeconds)) {
      m.alarm = m.stale;
      m.alarm_since = now;
    }
    out.stale = m.reason + (other               ? ""
                            : t.pending.empty() ? "; nobody has named the bound target since"
                                                : "; " + t.pending);
    out.target = m.stale;
    out.evidence["seen_by"] = kWitnesses[static_cast<size_t>(m.by)];
  }
  m.newest = claims.records.sorted();
  out.memory = std::move(m);
  return out;
}

Json to_json(const ServedMemory& m) {
  Json newest = Json::array();
  for (const NamedRecord& r : m.newest) newest.push_back({r.time, r.target});
  return {{"schema", "specdec.served_target/1"},
          {"package", m.package},
          {"bound", m.bound},
          {"former", m.former},
          {"package_since", m.package_since},
          {"rolling_since", m.rolling_since},
          {"stale", m.stale},
          {"stale_since", m.stale_since},
          {"alarm", m.alarm},
          {"alarm_since", m.alarm_since},
          {"reason", m.reason},
          {"by", kWitnesses[static_cast<size_t>(m.by)]},
          {"newest", newest}};
}

ServedMemory served_memory_from_text(const std::string& text, const std::string& where) {
  ServedMemory m;
  if (text.empty()) return m;
  const Json o = parse_json(text, where);
  require_schema(o, "served_target", 1, where);
  const auto get = [&](const char* key) { return json_string(o, key, where, ErrorKind::kData); };
  m.package = get("package");
  m.bound = get("bound");
  m.former = get("former");
  m.package_since = json_int(o, "package_since", {0, kMaxCount}, where, ErrorKind::kData);
  m.rolling_since = json_int(o, "rolling_since", {0, kMaxCount}, where, ErrorKind::kData);
  m.stale = get("stale");
  m.stale_since = json_int(o, "stale_since", {0, kMaxCount}, where, ErrorKind::kData);
  m.reason = get("reason");
  m.alarm = json_string(o, "alarm", "", where, ErrorKind::kData);
  m.alarm_since = json_int(o, "alarm_since", {.low = 0, .high = kMaxCount, .fallback = 0}, where, ErrorKind::kData);
  const auto* const by = std::find(kWitnesses.begin(), kWitnesses.end(), get("by"));
  if (by == kWitnesses.end()) throw Error(ErrorKind::kData, where + ": by: expected a witness");
  m.by = static_cast<Witness>(by - kWitnesses.begin());
  for (const Json& r : json_array(o, "newest", NewestRecords::kMost, where, ErrorKind::kData)) {
    if (!r.is_array() || r.size() != 2 || !r[0].is_number_integer() || !r[1].is_string())
      throw Error(ErrorKind::kData, where + ": newest: expected [time, target]");
    m.newest.push_back({r[0].get<int64_t>(), r[1].get<std::string>()});
  }
  return m;
}

}  // namespace specdec::monitor
