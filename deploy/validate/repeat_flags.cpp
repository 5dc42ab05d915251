#include "deploy/validate/repeat_flags.h"

#include <sstream>

namespace specdec::deploy {

std::vector<std::string> repeat_flags(const ValidateOptions& o) {
  const ValidateOptions usual;
  std::vector<std::string> flags;
  const auto text = [&](const char* name, const std::string& value, const std::string& fallback) {
    if (value != fallback) flags.push_back(std::string(name) + "=" + value);
  };
  const auto number = [&](const char* name, double value, double fallback) {
    std::ostringstream out;
    out << value;
    if (value != fallback) flags.push_back(std::string(name) + "=" + out.str());
  };
  const auto count = [&](const char* name, int64_t value, int64_t fallback) {
    if (value != fallback) flags.push_back(std::string(name) + "=" + std::to_string(value));
  };
  const auto flag = [&](const char* name, bool given) {
    if (given) flags.push_back(name);
  };
  text("--split", o.split, usual.split), text("--contexts", o.contexts, usual.contexts);
  text("--baseline", o.baseline, ""), text("--against", o.against, "");
  number("--floor", o.floor, usual.floor), number("--goal", o.goal, usual.goal);
  for (const std::string& floor : o.segment_floors) text("--segment-floor", floor, "");
  if (o.segments_floor) number("--segments-floor", *o.segments_floor, -1);
  if (o.min_gain) number("--min-gain", *o.min_gain, -2);
  flag("--force", o.force), flag("--allow-stale", o.allow_stale), flag("--no-early-stop", !o.early_stop);
  count("--max-requests", o.max_requests, usual.max_requests);
  count("--speed-prompts", o.speed_prompts, usual.speed_prompts);
  count("--speed-tokens", o.speed_tokens, usual.speed_tokens);
  number("--temperature", o.sampling.temperature, usual.sampling.temperature),
      number("--top-p", o.sampling.top_p, usual.sampling.top_p);
  count("--top-k", o.sampling.top_k, usual.sampling.top_k), number("--min-p", o.sampling.min_p, usual.sampling.min_p);
  count("--rollout-requests", o.rollout_requests, usual.rollout_requests);
  count("--rollout-tokens", o.rollout_tokens, usual.rollout_tokens);
  for (const std::string& engine : o.predict) text("--predict", engine, "");
  count("--k", o.speculation.k, usual.speculation.k), count("--max-k", o.speculation.max_k, usual.speculation.max_k);
  text("--verify", to_string(o.speculation.verify), to_string(usual.speculation.verify));
  text("--device", o.device.device, usual.device.device), text("--dtype", o.device.dtype, usual.device.dtype);
  text("--draft-dtype", o.device.draft_dtype, ""), count("--threads", o.device.threads, usual.device.threads);
  if (o.device.seed != usual.device.seed) flags.push_back("--seed=" + std::to_string(o.device.seed));
  return flags;
}

}  // namespace specdec::deploy
