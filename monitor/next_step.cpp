#include "monitor/next_step.h"

#include <vector>

#include "base/shell.h"

namespace specdec::monitor {

namespace {

std::string with_sources(const CheckOptions& o, const std::string& command) {
  std::vector<std::string> words = {"specdec", "monitor", command, "--package", o.package};
  const auto add = [&words](const char* flag, const std::string& value) { words.insert(words.end(), {flag, value}); };
  for (const SecretUrl& source : o.sources) add("--source", source.has_secret() ? "@FILE" : source.reveal());
  if (o.sources.empty()) add("--source", "http://127.0.0.1:8000/metrics");
  if (!o.target.empty()) add("--target", o.target);
  add("--state", o.state.string());
  if (command == "watch") add("--interval", "60");
  return shell_words(words);
}

}  // namespace

std::string next_command(const CheckOptions& o, const std::string& verdict) {
  if (verdict == "stale_target" || verdict == "drift")
    return shell_words({"specdec", "loop", "run", o.policy.loop.empty() ? "LOOP.toml" : o.policy.loop});
  if (verdict == "not_worth_it") return shell_words({"specdec", "serve", o.package, "--k", "0"});
  if (verdict == "inconclusive") return with_sources(o, o.sources.empty() ? "check" : "watch");
  return shell_words({"specdec", "monitor", verdict == "warn" ? "report" : "status", "--state", o.state.string()});
}

}  // namespace specdec::monitor
