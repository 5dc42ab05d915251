// Fuzzes LOOP.toml if the first byte is even, and a command's settings file with flags, lists and numbers if it is odd.
// Bad input must be refused with an Error of specdec, and an accepted LOOP.toml must satisfy the guarantees of
// cli/loop/loop.h.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/loop/loop.h"
#include "cli/settings.h"
#include "tests/fuzz/scratch_file.h"

namespace {

using namespace specdec;
using fuzz::require;

void read_loop(const std::string& path) {
  const cli::LoopSettings s = cli::read_loop_settings(path);
  require(!s.target.empty() && !s.logs.empty() && s.keep >= 1 && s.keep <= 1000 && s.cooldown_s >= 0);
  require(s.regenerate == "auto" || s.regenerate == "always" || s.regenerate == "never");
  for (const auto& [stage, flags] : s.stage_flags)
    for (const std::string& flag : flags) require(stage != "loop" && flag.size() <= 1u << 20);
}

// Removes the environment variables in which apply_settings passes on values.
void forget_settings() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry)
    if (std::string_view(*entry).starts_with("SPECDEC_"))
      names.emplace_back(*entry, std::string_view(*entry).find('='));
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

void read_settings(const std::string& path) {
  CLI::App app;
  std::string config, text;
  double number = 0;
  bool flag = false;
  std::vector<std::string> list;
  app.add_option("--config", config);
  CLI::App* sub = app.add_subcommand("serve", "");
  sub->add_option("--target", text);
  sub->add_option("--rate", number);
  sub->add_flag("--plain", flag);
  sub->add_option("--keys", list);
  sub->add_option("--domains", list)->delimiter(',');
  sub->add_subcommand("inner", "")->add_option("--depth", number);
  std::string arguments[] = {"specdec", "--config", path, "serve"};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), arguments[3].data(), nullptr};
  cli::apply_settings(app, 4, argv);
  try {
    app.parse(4, argv);
  } catch (const CLI::Error&) {  // the option does not take this value
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      "0[loop]\ntarget = \"t\"\nlogs = [\"/dev/null\"]\nwork = \"w\"\nstore = \"s\"\nkeep = 3\ncooldown = "
      "\"1d\"\nregenerate = \"auto\"\n[data]\nholdout = 0.1\nno-dedup = true\nmix = [\"a=1\", "
      "\"b=2\"]\n[distill]\ntime-limit = \"40s\"\n",
      "1target = \"t\"\n[serve]\nrate = 1.5e3\nplain = true\nkeys = [\"a\", \"b\"]\ndomains = [\"x\", 'y', "
      "1979-05-27T07:32:00Z]\n",
      "1serve.rate = 0x10\nserve.inner.depth = inf\n", "0a = {b = [[1, 2], {c = \"\"\"x\"\"\"}]}\n[[loop]]\n",
      "1\"quoted key\" = 1_000\n[serve]\nunknown = nan\n"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  // Skips inputs with wildcards or "..", because expanding them as file names could search the whole machine.
  if (text.find('*') != text.npos || text.find('?') != text.npos || text.find("..") != text.npos) return 0;
  const std::string& path = file.hold(text);
  try {
    if (data[0] % 2)
      read_settings(path);
    else
      read_loop(path);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kConfig || e.kind() == ErrorKind::kData || e.kind() == ErrorKind::kUsage);
  }
  forget_settings();
  return 0;
}
