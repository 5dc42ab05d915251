// Replaces this process by specdec-engine. In a build tree and in a wheel the engine's run path names LibTorch; for any
// other installed tree the functions below search for LibTorch.
#include "cli/exec_engine.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/progress.h"

namespace specdec::cli {

namespace {

namespace fs = std::filesystem;

bool holds_torch(const fs::path& lib) { return ::access((lib / "libtorch_cpu.so").c_str(), R_OK) == 0; }

// Returns the torch/lib directory of the Python environment at `prefix`, or "".
fs::path torch_of_prefix(const fs::path& prefix) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", ec)) {
    if (entry.path().filename().string().rfind("python3", 0) != 0) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      const fs::path lib = entry.path() / packages / "torch" / "lib";
      if (holds_torch(lib)) return lib;
    }
  }
  return {};
}

// Searches SPECDEC_TORCH_LIB, then the active virtual environment, then the Python installations on PATH.
fs::path find_torch() {
  if (const char* given = std::getenv("SPECDEC_TORCH_LIB")) return given;
  if (const char* venv = std::getenv("VIRTUAL_ENV"))
    if (const fs::path lib = torch_of_prefix(venv); !lib.empty()) return lib;
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string directory; std::getline(path, directory, ':');) {
    std::error_code ec;
    if (directory.empty() || !fs::exists(fs::path(directory) / "python3", ec)) continue;
    if (const fs::path lib = torch_of_prefix(fs::path(directory).parent_path()); !lib.empty()) return lib;
  }
  return {};
}

fs::path libexec_of(const Global& global) { return fs::path(global.program).parent_path().parent_path() / "libexec"; }

// Returns the torch/lib directory in the engine's run path, "" if the run path has none. The path is read from the file
// torch-lib beside the engine. In a build tree the file names the LibTorch that the engine was linked with. In a wheel
// it names the torch of the same Python environment, as a path relative to the engine.
fs::path torch_of_run_path(const fs::path& libexec) {
  std::ifstream file(libexec / "torch-lib");
  std::string line;
  std::getline(file, line);
  return line.empty() ? fs::path() : libexec / line;
}

void prepend_library_path(const fs::path& directory) {
  const char* old = std::getenv("LD_LIBRARY_PATH");
  ::setenv("LD_LIBRARY_PATH", (directory.string() + (old && *old ? ":" + std::string(old) : "")).c_str(), 1);
}

}  // namespace

fs::path torch_of_environment(const Global& global) {
  const fs::path directory = libexec_of(global);
  if (!std::getenv("SPECDEC_TORCH_LIB") && holds_torch(torch_of_run_path(directory))) return {};
  const fs::path torch = find_torch();
  return holds_torch(torch) ? fs::absolute(torch).lexically_normal() : fs::path();
}

fs::path prepare_engine(const Global& global) {
  const fs::path directory = libexec_of(global);
  const fs::path engine = directory / "specdec-engine";
  std::error_code ec;
  if (!fs::exists(engine, ec))
    throw Error(ErrorKind::kConfig,
                engine.string() +
                    ": there is no such file, and this command runs models: install the engine, too "
                    "(pip install specdec), or build with SPECDEC_TORCH=ON");
  const char* given = std::getenv("SPECDEC_TORCH_LIB");
  if (!given && holds_torch(torch_of_run_path(directory))) return engine;
  const fs::path torch = find_torch();
  if (torch.empty())
    throw Error(ErrorKind::kConfig,
                "no LibTorch found: activate the Python environment that has torch 2.11 or set SPECDEC_TORCH_LIB to "
                "its torch/lib");
  if (!holds_torch(torch))
    throw Error(ErrorKind::kConfig, "SPECDEC_TORCH_LIB: " + torch.string() +
                                        " has no libtorch_cpu.so that this user can read: give the torch/lib of torch "
                                        "2.11");
  prepend_library_path(torch);
  return engine;
}

void exec_engine(const Global& global) {
  const fs::path engine = prepare_engine(global);
  std::vector<char*> argv{const_cast<char*>(engine.c_str())};
  for (const std::string& a : global.arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  // libgomp reads OMP_WAIT_POLICY when it is loaded. PASSIVE: idle threads do not spin on cores that other processes
  // need.
  ::setenv("OMP_WAIT_POLICY", "PASSIVE", 0);
  // Blocks the stop signals, and SIGHUP, until the engine unblocks them (cli/program.cpp). A stop signal that arrived
  // before this call would be lost in the exec, so stop_requested() is checked here.
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGINT), sigaddset(&stops, SIGTERM), sigaddset(&stops, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
  if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal");
  ::execv(engine.c_str(), argv.data());
  throw Error(ErrorKind::kInternal, engine.string() + ": cannot be started: " + std::strerror(errno));
}

}  // namespace specdec::cli
