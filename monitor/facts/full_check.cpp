#include "monitor/facts/full_check.h"

#include "base/file.h"
#include "base/full_digest.h"

namespace specdec::monitor {

namespace {

// Returns the digest of a directory's weights. The weights are read only if their files have changed since the last
// call.
std::string digest_of(const fs::path& directory, Json& known) {
  const std::string name = fs::canonical(directory).string(), stamp = weights_stamp(directory);
  if (const auto it = known.find(name); it != known.end() && it->value("stamp", "") == stamp)
    return it->at("digest").get<std::string>();
  const std::string digest = full_weights_digest(directory);
  // If the files changed while they were read, the digest is not stored.
  if (weights_stamp(directory) == stamp) known[name] = {{"stamp", stamp}, {"digest", digest}};
  return digest;
}

}  // namespace

TargetCheck check_every_byte(const WatchedPair& pair, const fs::path& packaged, const fs::path& served,
                             const std::string& memory) {
  const std::string where = "the monitor's state: target_full";
  Json m = memory.empty() ? Json() : parse_json(memory, where);
  if (m.is_object()) require_schema(m, "target_full", 1, where);
  if (!m.is_object() || m.value("package", "") != pair.package)
    m = {{"schema", "specdec.target_full/1"}, {"package", pair.package}, {"reference", ""}, {"known", Json::object()}};
  TargetCheck out;
  try {
    Json& known = m.at("known");
    if (m.at("reference") == "") m["reference"] = digest_of(packaged.empty() ? served : packaged, known);
    const std::string reference = m["reference"], now = digest_of(served, known);
    if (now != reference)
      out.stale = served.string() +
                  " is another target than the draft was validated for (weights differ outside the samples: " +
                  now.substr(0, 12) + ", expected " + reference.substr(0, 12) + ")";
    out.evidence = {{"watched_by", "every byte"}, {"reference", reference}, {"weights", now}};
  } catch (const Json::exception& e) {
    throw Error(ErrorKind::kData, where + ": " + e.what());
  }
  out.memory = m.dump();
  return out;
}

}  // namespace specdec::monitor
