#include "deploy/validate/options.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "deploy/validate/gate.h"
#include "deploy/validate/speed.h"

namespace specdec::deploy {

namespace {

void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::kUsage, text);
}

}  // namespace

ValidateParts parse_parts(const std::string& text) {
  ValidateParts parts;
  const std::pair<const char*, bool*> known[] = {{"acceptance", &parts.acceptance},
                                                 {"rollout", &parts.rollout},
                                                 {"speed", &parts.speed},
                                                 {"lossless", &parts.lossless}};
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');) {
    const auto it = std::find_if(std::begin(known), std::end(known), [&](const auto& k) { return name == k.first; });
    if (it == std::end(known))
      throw Error(ErrorKind::kUsage, "--parts: expected acceptance, rollout, speed or lossless, found '" + name + "'");
    *it->second = true;
  }
  if (text.empty()) throw Error(ErrorKind::kUsage, "--parts is empty: expected acceptance, rollout, speed, lossless");
  return parts;
}

std::pair<std::string, double> parse_segment_floor(const std::string& text, bool force) {
  const size_t at = text.rfind('=');
  char* end = nullptr;
  const double floor = at == std::string::npos ? 0 : std::strtod(text.c_str() + at + 1, &end);
  require(at != std::string::npos && at > 0 && end != text.c_str() + at + 1 && !*end,
          "--segment-floor: expected NAME=FLOOR, found '" + text + "'");
  check_floor("--segment-floor " + text.substr(0, at), floor, force);
  return {text.substr(0, at), floor};
}

void validate(const ValidateOptions& o) {
  validate(o.sampling);
  validate(o.speculation);
  validate(o.device);
  check_floor("--floor", o.floor, o.force);
  check_floor("--goal", o.goal, true);
  if (o.segments_floor) check_floor("--segments-floor", *o.segments_floor, o.force);
  for (const std::string& text : o.segment_floors) parse_segment_floor(text, o.force);
  for (const std::string& text : o.predict) parse_engine_costs(text);
  require(o.against.empty() || o.baseline.empty(), "--against and --baseline: give one of them");
  require(!o.min_gain || !(o.against.empty() && o.baseline.empty()),
          "--min-gain: gain over what? Give --against or --baseline");
  require(!o.min_gain || (*o.min_gain >= -1 && *o.min_gain <= 1), "--min-gain: expected a number in [-1, 1]");
  require(o.split == "holdout" || o.split == "train" || o.split == "all",
          "--split: expected holdout, train or all, found '" + o.split + "'");
  require(o.contexts == "target" || o.contexts == "data",
          "--contexts: expected target or data, found '" + o.contexts + "'");
  require(o.speculation.k != 0, "--k 0: a draft that drafts nothing cannot be validated; give --k 1 or more, or auto");
  require(o.speculation.k > 0 || o.speculation.max_k > 0, "--max-k 0: a draft that drafts nothing cannot be validated");
  const auto at_least = [](int64_t least, const char* flag, int64_t value) {
    require(value >= least, std::string(flag) + ": expected an integer >= " + std::to_string(least) + ", found " +
                                std::to_string(value));
  };
  at_least(0, "--max-requests", o.max_requests);
  at_least(0, "--rollout-requests", o.rollout_requests);
  at_least(1, "--rollout-tokens", o.rollout_tokens);
  at_least(1, "--speed-tokens", o.speed_tokens);
  at_least(1, "--speed-prompts", o.speed_prompts);
  parse_parts(o.parts);
}

}  // namespace specdec::deploy
