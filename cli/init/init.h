// `specdec init [DIR]`: LOOP.toml and specdec.toml with what runs them unattended (GitHub, GitLab, systemd, Kubernetes)
// and watches them (Prometheus rules, Grafana dashboard). What a user would change is in the two TOML files; the rest
// only calls them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace specdec::cli {

struct InitOptions {
  std::filesystem::path directory = ".";
  std::string target = "models/target", draft = "prune:1", work = "loop", store = "store", channel = "production",
              state = "monitor.db";
  std::vector<std::string> logs = {"recorded/*.jsonl"}, sources = {"recorded/acceptance"};
  int64_t requests_per_day = 0;  // 0 = unknown
  std::string image = "specdec:" SPECDEC_VERSION;
  std::vector<std::string> only;  // of init_parts(); empty = all
  bool force = false;
};

struct InitFile {
  std::filesystem::path path;  // relative to the directory
  std::string part, text;
};

// "loop", "github", "gitlab", "systemd", "kubernetes", "monitoring".
const std::vector<std::string>& init_parts();

// What is to be written; every value quoted as its format needs it. Throws Error(kUsage) for values that no format can
// hold (control characters, bytes that are no UTF-8), names that are no channel and parts that do not exist. `program`:
// path of specdec for systemd.
std::vector<InitFile> init_files(const InitOptions& options, const std::string& program);

// Writes one file: "written", "unchanged", "replaced" (with force) or "kept", where another text lies in its place.
std::string write_init_file(const InitOptions& options, const InitFile& file);

}  // namespace specdec::cli
