// Shared declarations of the subcommands. add_<command>() declares the flags of a subcommand, which fill a plain
// options struct. Two executables link this code: `specdec` (torch-free) parses the command line, runs the light
// commands and execs the other executable for the rest; `specdec-engine` runs models. EngineRunners is empty in
// `specdec` and filled in `specdec-engine`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/run_options.h"
#include "base/secret.h"
#include "cli/settings.h"

namespace CLI {
class App;  // only files that declare flags include CLI11's large header
class Option;
class Validator;
}  // namespace CLI
namespace specdec::deploy {
struct GenerateOptions;
struct ValidateOptions;
struct BenchOptions;
struct ServeOptions;
}  // namespace specdec::deploy
namespace specdec::distill {
struct DistillOptions;
struct LabelOptions;
}  // namespace specdec::distill

namespace specdec::cli {

struct Global {
  bool json = false;
  int verbosity = 0;  // -q = -1, -v = 1
  std::string log_format = "text";
  std::string config_file;
  std::string program;                 // absolute path of this executable, for starting it as a child process
  std::vector<std::string> arguments;  // argv[1..], passed to specdec-engine
};

// Each runner returns an exit code and prints its result to stdout (one JSON object with --json).
struct EngineRunners {
  int (*generate)(const Global&, const deploy::GenerateOptions&) = nullptr;
  int (*distill)(const Global&, const distill::DistillOptions&) = nullptr;
  int (*label)(const Global&, const distill::LabelOptions&) = nullptr;
  int (*validate)(const Global&, const deploy::ValidateOptions&) = nullptr;
  int (*bench)(const Global&, const deploy::BenchOptions&) = nullptr;
  int (*serve)(const Global&, const deploy::ServeOptions&) = nullptr;
  int (*doctor)(const Global&) = nullptr;  // prints what it found about the GPUs, in JSON
};

struct Cli {
  CLI::App& app;
  Global& global;
  const EngineRunners& runners;
  // Set by the callback of the chosen subcommand. run_program() calls `selected` and turns errors into exit codes.
  std::function<int()> selected;
  // Checks the options by rules that the parser does not know; empty if the command has no such rules. Set together
  // with `selected`. `check` throws Error(kUsage) and reads no file. run_program() calls `check` before `selected`, and
  // check_command_line() calls it for the stages of a loop.
  std::function<void()> check = {};
  SettingOrigins origins = {};
};

void add_fetch(Cli& cli);
void add_generate(Cli& cli);
void add_data(Cli& cli);
void add_distill(Cli& cli);
void add_validate(Cli& cli);
void add_bench(Cli& cli);
void add_package(Cli& cli);
void add_export(Cli& cli);
void add_serve(Cli& cli);
void add_monitor(Cli& cli);
void add_loop(Cli& cli);
void add_init(Cli& cli);
void add_demo(Cli& cli);
void add_doctor(Cli& cli);
void add_help(Cli& cli);
void add_completion(Cli& cli);
void add_manual(Cli& cli);

// Declares the program's own flags, and all commands with their flags.
void declare_commands(Cli& cli);

// Implements the callback of a command that runs models. Selects `runner`, which runs in this process. If `runner` is
// null, selects a function that execs specdec-engine with the same arguments. Usage:
//   sub->callback([&cli, options] { select_engine(cli, cli.runners.generate, options); });
template <class Options>
void select_engine(Cli& cli, int (*runner)(const Global&, const Options&), std::shared_ptr<Options> options);
[[noreturn]] void exec_engine(const Global& global);

// The functions below declare flags that several commands share, so that an option has the same name, help and check
// everywhere.
//
// at_least() and more_than() return a CLI11 check for a number that must be at least (or more than) `least`.
std::function<std::string(const std::string&)> at_least(double least);
std::function<std::string(const std::string&)> more_than(double least);
CLI::Validator within(double low, double high);  // both ends are allowed, and the help shows the range

CLI::Option* add_seed_flag(CLI::App& sub, uint64_t& seed, const std::string& help);  // --seed
void add_device_flags(CLI::App& sub, DeviceOptions& options);
void add_draft_dtype_flag(CLI::App& sub, DeviceOptions& options);  // --draft-dtype
void add_exact_flag(CLI::App& sub, DeviceOptions& options);        // --exact
void add_sampling_flags(CLI::App& sub, SamplingOptions& options);
void add_speculation_flags(CLI::App& sub, SpeculationOptions& options);  // --k and the flags of add_verify_flags
void add_verify_flags(CLI::App& sub, SpeculationOptions& options);       // --verify, --max-k
void add_shape_flags(CLI::App& sub, SpeculationOptions& options);        // --tree, --suffix

// Returns the API key that a client sends: the first word of `file`, which may be the file of serve --api-key-file.
// Throws Error(kConfig) if the file contains no word.
Secret read_api_key(const std::string& file);
// Returns the key for an OpenAI-compatible endpoint: the key in `file` if `file` is not "", else the value of
// OPENAI_API_KEY. That variable is not used, and the key is empty, if `url` would not keep it secret (neither https nor
// this machine): nobody asked for the key to be sent there.
Secret endpoint_key(const std::string& file, const std::string& url);
// Returns the URL that an argument gives: the argument itself, or for @FILE the first word of the file. Every user of
// the machine can read the arguments of a process, so an argument that contains a secret causes a warning. Throws
// Error(kConfig) if the file contains no word.
SecretUrl secret_url(const Global& global, const std::string& argument, SecretUrl::Shows shows);

// Lets MODEL arguments be hub names, and downloads a model that is not in the cache. Resolved names are remembered; a
// second call of install_hub() forgets them, so that the hub is asked again.
void install_hub(const Global& global);

// Returns a function that draws progress on stderr: a bar with ETA on a terminal, lines elsewhere (of JSON with
// --log-format json), nothing with -q.
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
