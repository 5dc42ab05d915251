// How a subcommand is put together. Options live in plain structs of the stages; add_<command>() declares the flags,
// and is linked into both executables: `specdec` (torch-free: parses, runs the light commands, execs the other for the
// rest) and `specdec-engine` (runs models). EngineRunners is empty in the first, filled in the second.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/run_options.h"
#include "base/secret.h"

namespace CLI {
class App;  // a heavy header: only files that declare flags include it
}
namespace specdec::deploy {
struct GenerateOptions;
struct ValidateOptions;
struct BenchOptions;
struct ServeOptions;
}  // namespace specdec::deploy
namespace specdec::distill {
struct DistillOptions;
}

namespace specdec::cli {

struct Global {
  bool json = false;
  int verbosity = 0;  // -q = -1, -v = 1
  std::string log_format = "text";
  std::string config_file;
  std::string program;                 // absolute path of this executable, to start siblings
  std::vector<std::string> arguments;  // argv[1..], handed on to specdec-engine
};

// Each returns an exit code and prints its result to stdout (one JSON object with --json).
struct EngineRunners {
  int (*generate)(const Global&, const deploy::GenerateOptions&) = nullptr;
  int (*distill)(const Global&, const distill::DistillOptions&) = nullptr;
  int (*validate)(const Global&, const deploy::ValidateOptions&) = nullptr;
  int (*bench)(const Global&, const deploy::BenchOptions&) = nullptr;
  int (*serve)(const Global&, const deploy::ServeOptions&) = nullptr;
};

struct Cli {
  CLI::App& app;
  Global& global;
  const EngineRunners& runners;
  std::function<int()> selected;  // set by the chosen subcommand's callback; run by main inside the error translation
};

void add_fetch(Cli& cli);
void add_generate(Cli& cli);
void add_data(Cli& cli);
void add_distill(Cli& cli);
void add_validate(Cli& cli);
void add_bench(Cli& cli);
void add_package(Cli& cli);
void add_serve(Cli& cli);
void add_monitor(Cli& cli);
void add_loop(Cli& cli);
void add_init(Cli& cli);
void add_demo(Cli& cli);
void add_doctor(Cli& cli);
void add_completion(Cli& cli);

// Body of an engine command's callback: runs `runner` here, or execs specdec-engine with the same arguments when it is
// null. Usage: sub->callback([&cli, options] { select_engine(cli, cli.runners.generate, options); });
template <class Options>
void select_engine(Cli& cli, int (*runner)(const Global&, const Options&), std::shared_ptr<Options> options);
[[noreturn]] void exec_engine(const Global& global);

// Shared flag groups, so that the same option has the same name, help and check everywhere.
void add_device_flags(CLI::App& sub, DeviceOptions& options);
void add_draft_dtype_flag(CLI::App& sub, DeviceOptions& options);  // --draft-dtype
void add_sampling_flags(CLI::App& sub, SamplingOptions& options);
void add_speculation_flags(CLI::App& sub, SpeculationOptions& options);  // --k and those of add_verify_flags
void add_verify_flags(CLI::App& sub, SpeculationOptions& options);       // --verify, --max-k
void add_shape_flags(CLI::App& sub, SpeculationOptions& options);        // --tree, --suffix

// The key a client sends: the first word of a file that serve --api-key-file reads, too. Throws Error(kConfig) for a
// file without one.
Secret read_api_key(const std::string& file);
// A URL argument: itself, or with @FILE the first word of that file, which no other user of the machine sees. Warns of
// a secret that stands among the arguments. Throws Error(kConfig) for a file without one.
SecretUrl secret_url(const Global& global, const std::string& argument, SecretUrl::Shows shows);

// Hub names as MODEL are looked up, and downloaded where they are missing, from here on. Called again it asks the hub
// again.
void install_hub(const Global& global);

// Draws progress on stderr: a bar with ETA on a terminal, one line in 30 s elsewhere, nothing with -q.
ProgressFn make_progress(const Global& global);

template <class Options>
void select_engine(Cli& cli, int (*runner)(const Global&, const Options&), std::shared_ptr<Options> options) {
  if (runner == nullptr) {
    cli.selected = [&cli]() -> int { exec_engine(cli.global); };
  } else {
    cli.selected = [&cli, runner, options] { return runner(cli.global, *options); };
  }
}

}  // namespace specdec::cli
