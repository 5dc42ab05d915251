#include "monitor/report/next_step.h"

#include <filesystem>
#include <vector>

#include "base/shell.h"

namespace specdec::monitor {

namespace {

// Returns `specdec loop run`, or `specdec init` to write a LOOP.toml if there is none.
std::string loop_command(const CheckOptions& o) {
  const std::string loop = o.policy.loop.empty() ? "LOOP.toml" : o.policy.loop;
  if (!o.policy.loop.empty() || std::filesystem::exists(loop)) return shell_words({"specdec", "loop", "run", loop});
  std::vector<std::string> words = {"specdec", "init", "--only", "loop"};
  if (!o.target.empty() && o.target.find("://") == std::string::npos) words.insert(words.end(), {"--target", o.target});
  return shell_words(words);
}

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

std::string next_command(const CheckOptions& o, Verdict verdict) {
  switch (verdict) {
    case Verdict::kStaleTarget:
    case Verdict::kDrift:
      return loop_command(o);
    case Verdict::kNotWorthIt:
      return shell_words({"specdec", "serve", o.package, "--k", "0"});
    case Verdict::kInconclusive:
      return with_sources(o, o.sources.empty() ? "check" : "watch");
    case Verdict::kWarn:
      return shell_words({"specdec", "monitor", "report", "--state", o.state.string()});
    case Verdict::kHealthy:
      break;
    case Verdict::kPass:
    case Verdict::kFail:
    case Verdict::kNotLossless:
    case Verdict::kStale:
    case Verdict::kFaster:
    case Verdict::kImproved:
    case Verdict::kNoSignificantGain:
      break;  // judge() never returns these verdicts
  }
  return shell_words({"specdec", "monitor", "status", "--state", o.state.string()});
}

}  // namespace specdec::monitor
