// `specdec init [DIR]` writes LOOP.toml and specdec.toml, the files that run them unattended (GitHub, GitLab, systemd,
// Kubernetes), and those that watch them (Prometheus rules, Grafana dashboard). Everything that a user would change is
// in the two TOML files; the other files only call them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/version.h"

namespace specdec::cli {

struct InitOptions {
  std::filesystem::path directory = ".";
  std::string target = "models/target", draft = "prune:1", work = "loop", store = "store", channel = "production",
              state = "monitor.db";
  std::vector<std::string> logs = {"recorded/*.jsonl"}, sources = {"recorded/acceptance"};
  int64_t requests_per_day = 0;  // 0 = unknown
  std::string image = std::string("specdec:") + kToolVersion;
  std::vector<std::string> only;  // from init_parts(); empty = all
  bool force = false;
};

struct InitFile {
  std::filesystem::path path;  // relative to the directory
  std::string part, text;
};

// Returns "loop", "github", "gitlab", "systemd", "kubernetes", "monitoring".
const std::vector<std::string>& init_parts();

// Returns the files to write, with every value quoted as its format requires. Throws Error(kUsage) for values that no
// format can hold (control characters, invalid UTF-8), names that are not a channel and parts that do not exist.
// `program` is the path of specdec for systemd.
std::vector<InitFile> init_files(const InitOptions& options, const std::string& program);

// Writes one file. Returns "written", "unchanged", "replaced" (with force), or "kept" if the file exists with another
// text.
std::string write_init_file(const InitOptions& options, const InitFile& file);

}  // namespace specdec::cli
