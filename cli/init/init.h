// `specdec init [DIR]` writes two settings files, LOOP.toml and specdec.toml. It also writes files that run the loop
// unattended (GitHub, GitLab, systemd, Kubernetes) or on several GPUs (Slurm, JobSet), and files that monitor it
// (Prometheus rules, Grafana dashboard). Everything that a user would change is in the two TOML files; the other files
// only refer to them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/version.h"

namespace specdec::cli {

struct InitOptions {
  std::filesystem::path directory = ".";
  std::string target = "models/target", draft = "prune:2", work = "loop", store = "store", channel = "production",
              state = "monitor.db";
  std::vector<std::string> logs = {"recorded/*.jsonl"};
  std::vector<std::string> sources = {};  // what the monitor reads; empty = the acceptance records beside the first log
  int64_t requests_per_day = 0;           // 0 = unknown
  std::string image = std::string("specdec:") + kToolVersion, cuda_image = "";  // "" = image + "-cuda"
  std::vector<std::string> only;  // the parts to write (init_parts()); empty = all
  bool force = false;
};

struct InitFile {
  std::filesystem::path path;  // relative to InitOptions::directory
  std::string part, text;
};

// Returns the names of all parts: "loop", "github", "gitlab", "systemd", "kubernetes", "slurm", "job", "jobset",
// "pytorchjob", "monitoring".
const std::vector<std::string>& init_parts();

// The program that systemd starts. `torch` is the folder of LibTorch's libraries, as torch_of_environment() returns it;
// "" if the program finds them itself or there are none.
struct InitProgram {
  std::string path, torch = "";
};

// Returns the files to write, with every value quoted as its format requires. Relative paths in the files are relative
// to options.directory, so a relative path that exists in the current directory but not in options.directory is
// rewritten. Throws Error(kUsage) for values that the formats cannot hold (control characters, invalid UTF-8), invalid
// channel names and unknown parts.
std::vector<InitFile> init_files(const InitOptions& options, const InitProgram& program);

// Writes one file. Returns "written", "unchanged", "replaced" (with force), or "kept" if a file with other text exists
// and is not replaced.
std::string write_init_file(const InitOptions& options, const InitFile& file);

}  // namespace specdec::cli
