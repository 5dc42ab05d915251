// A plan, and what a launch file does with it.
#pragma once

#include <algorithm>
#include <sstream>

#include "deploy/package/launch.h"
#include "tests/package/pair.h"

namespace specdec::deploy {

inline LaunchPlan plan() {
  LaunchPlan p;
  p.name = "org/Chat-7B";
  p.target_id = std::string(64, 'a');
  p.draft_id = std::string(64, 'b');
  p.dtype = "bf16";
  p.verify = "token";
  p.schedule = {{1, 4, 5}, {5, 16, 3}, {17, 64, 0}};
  return p;
}
inline std::map<std::string, std::string> files(const LaunchPlan& p) { return launch_files(p, known_engines()); }

// Runs a launch script with a stand-in for the engine on PATH and returns the arguments that the script passed to it.
inline std::vector<std::string> arguments_of(const std::string& script_name, const std::string& script,
                                             const std::string& program, const testing::Scratch& dir) {
  const fs::path package = dir / "a \"package\" \\ here";
  testing::put(package / "engines" / script_name, script);
  testing::put(dir / "bin" / program, "#!/bin/sh\nfor a in \"$@\"; do printf '%s\\n' \"$a\"; done > \"$OUT\"\n");
  fs::permissions(dir / "bin" / program, fs::perms::owner_all);
  // The path contains quotes, so it is passed in an environment variable.
  const std::string command =
      "PATH='" + (dir / "bin").string() + "':$PATH OUT='" + (dir / "out").string() + "' bash \"$SCRIPT\" --port 1234";
  ::setenv("SCRIPT", (package / "engines" / script_name).c_str(), 1);
  EXPECT_EQ(std::system(command.c_str()), 0) << script;
  std::istringstream lines(testing::get(dir / "out"));
  std::vector<std::string> arguments;
  for (std::string line; std::getline(lines, line);) arguments.push_back(line);
  return arguments;
}
inline std::string after(const std::vector<std::string>& arguments, const std::string& flag) {
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  return at == arguments.end() || at + 1 == arguments.end() ? "" : *(at + 1);
}

}  // namespace specdec::deploy
