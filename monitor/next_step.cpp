#include "monitor/next_step.h"

#include <algorithm>

namespace specdec::monitor {

namespace {

std::string quoted(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || std::string_view("-_./:@=+,%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string with_sources(const CheckOptions& o, const std::string& command) {
  std::string line = "specdec monitor " + command + " --package " + quoted(o.package);
  for (const SecretUrl& source : o.sources) line += " --source " + (source.has_secret() ? "@FILE" : quoted(source.reveal()));
  if (o.sources.empty()) line += " --source http://127.0.0.1:8000/metrics";
  if (!o.target.empty()) line += " --target " + quoted(o.target);
  return line + " --state " + quoted(o.state.string());
}

}  // namespace

std::string next_command(const CheckOptions& o, const std::string& verdict) {
  if (verdict == "stale_target" || verdict == "drift") return "specdec loop run " + quoted(o.policy.loop.empty() ? "LOOP.toml" : o.policy.loop);
  if (verdict == "not_worth_it") return "specdec serve " + quoted(o.package) + " --k 0";
  if (verdict == "inconclusive") return o.sources.empty() ? with_sources(o, "check") : with_sources(o, "watch") + " --interval 60";
  if (verdict == "warn") return "specdec monitor report --state " + quoted(o.state.string());
  return "specdec monitor status --state " + quoted(o.state.string());
}

}  // namespace specdec::monitor
