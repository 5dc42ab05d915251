// A story of commands: runs the program's own commands one after the other as child processes, prints a line for each
// step, and collects checks.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/schema/validation_report.h"
#include "cli/command.h"
#include "cli/demo/table.h"

namespace specdec::cli {

// Returns the directory of the demo's models and prompts: share/specdec/demo beside bin/, in the build tree and the
// install tree. Throws Error(kIo) if `file` is not in it.
std::filesystem::path demo_assets(const Global& global, const std::string& file);

// Returns "value [low, high]".
std::string with_interval(const Estimate& estimate);

class Story {
 public:
  // `out` must not exist, or must be the directory of an earlier demo, which is then replaced. Throws Error(kUsage).
  Story(const Global& global, const std::filesystem::path& out);

  const std::filesystem::path& out() const { return out_; }
  const std::string& program() const { return global_.program; }

  void begin(const std::string& step);
  void say(const std::string& text);  // ends the step
  void check(const std::string& what, bool holds);

  // Runs a command with --json and returns what it prints, null if that is not JSON. Throws Error(kInternal) for an
  // exit code that is not in `allowed`. `code`, if not null, receives the exit code.
  Json run_json(std::vector<std::string> arguments, const std::vector<int>& allowed = {0}, int* code = nullptr) const;
  struct Gate {
    ValidationReport report;
    int exit_code = 0;
  };
  // Runs `validate` with these arguments and writes to out()/name.
  Gate validate(std::vector<std::string> arguments, const std::string& name) const;

  // The channel to which packages of the story are promoted, STORE:CHANNEL in out()/store.
  std::string channel() const { return (out_ / "store").string() + ":production"; }
  // Runs `monitor check` of the channel's package on the records in out()/recorded.
  Json monitor(const std::vector<std::string>& more, int* code) const;

  // The result so far: `passed` until a check does not hold. The table and the report are to be filled before finish().
  DemoResult& result() { return result_; }
  // Prints the result: with --json the object, else the checks and `table`. Returns the exit code.
  int finish(const std::string& table);

 private:
  const Global& global_;
  std::filesystem::path out_, log_;
  SystemClock clock_;
  std::string step_;
  double started_ = 0;
  int line_ = 0;
  DemoResult result_;
};

}  // namespace specdec::cli
