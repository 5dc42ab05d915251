// `specdec doctor`: lists what this machine has and what is missing, one line each. This file does not use LibTorch. It
// starts the engine as a child process, which checks the GPUs (cli/engine/doctor.cpp); this also shows whether the
// engine starts at all.
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/cpu_features.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/version.h"
#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/exec_engine.h"
#include "cli/gpu_findings.h"
#include "cli/results.h"
#include "net/hub.h"

namespace specdec::cli {

namespace {

std::string gibibytes(uint64_t bytes) { return format("%.1f GiB", static_cast<double>(bytes) / (1ull << 30)); }

Finding check_cpu() {
  const CpuFeatures cpu = cpu_features();
  return {"cpu", true,
          cpu.text() + ": distill computes bf16 checkpoints in " + (cpu.multiplies_bf16() ? "bf16" : "fp32") + " here"};
}

Finding check_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    uint64_t kib = 0;
    in >> kib >> unit;
    if (key == "MemAvailable:") return {"memory", kib > (1u << 20), gibibytes(kib * 1024) + " available"};
  }
  return {"memory", false, "cannot be read"};
}

constexpr double kMostSeconds = 300;  // longest wait for the engine; checking one GPU takes a few seconds

// Lets the engine check the GPUs. Sets `gpus` to what the engine printed about them.
std::vector<Finding> check_engine(const Global& global, std::vector<GpuCheck>& gpus) {
  fs::path engine;
  try {
    engine = prepare_engine(global);
  } catch (const Error& e) {
    return {{"engine", false, e.what()}};
  }
  const ChildResult child = run_child(engine.string(), {"--json", "doctor"}, {"/dev/null"}, {}, kMostSeconds);
  if (child.late) return {late_finding(engine.string(), kMostSeconds)};
  return engine_findings(engine.string(), child.exit_code, child.output, gpus);
}

// Reports from where models named org/name are loaded. Does not contact the hub.
Finding check_hub() try {
  const net::HubOptions options = net::hub_options_from_environment();
  int64_t models = 0;
  std::error_code ec;
  for (fs::directory_iterator it(hub_cache(), ec), end; !ec && it != end; it.increment(ec))
    models += it->path().filename().string().starts_with("models--");
  return {"hub", true,
          (options.offline ? "offline" : options.endpoint) + ", " + std::to_string(models) + " models in " +
              hub_cache().string() + " (" + gibibytes(free_disk_bytes(hub_cache())) + " free), " +
              (options.token_source.empty() ? "no token" : "token of " + options.token_source)};
} catch (const Error& e) {
  return {"hub", false, e.what()};
}

struct DoctorResult {
  bool good = true;
  std::string tool_version = kToolVersion;
  std::vector<Finding> checks;
  std::vector<GpuCheck> gpus;
};
void visit_fields(Fields& f, DoctorResult& r) {
  f.type("DoctorResult", "What this machine has and what is missing.");
  f.schema("doctor", 1);
  f.one_of("verdict", r.good, {{true, "ok"}, {false, "bad"}});
  f("tool_version", r.tool_version);
  f("checks", r.checks);
  f("gpus", r.gpus);
}

int run_doctor(const Global& global) {
  std::vector<Finding> findings;
  findings.push_back(
      {"cores", std::thread::hardware_concurrency() >= 2, std::to_string(std::thread::hardware_concurrency())});
  findings.push_back(check_cpu());
  findings.push_back(check_memory());
  const uint64_t disk = free_disk_bytes(fs::current_path());
  findings.push_back({"disk", disk > (2ull << 30), gibibytes(disk) + " free here"});
  std::vector<GpuCheck> gpus;
  for (Finding& finding : check_engine(global, gpus)) findings.push_back(std::move(finding));
  findings.push_back(check_hub());
  findings.push_back(
      {"clock", std::time(nullptr) > 1767225600,
       std::time(nullptr) > 1767225600 ? "plausible" : "is before 2026: certificates and records will be wrong"});
  bool good = true;
  for (const Finding& f : findings) {
    good = good && f.good;
    if (!global.json) std::printf("%-4s %-10s %s\n", f.good ? "ok" : "BAD", f.name.c_str(), f.text.c_str());
  }
  if (global.json) std::printf("%s\n", json_of(DoctorResult{good, kToolVersion, findings, gpus}).dump().c_str());
  return good ? 0 : 3;
}

}  // namespace

void add_doctor(Cli& cli) {
  CLI::App* sub = cli.app.add_subcommand(
      "doctor", "Checks this machine: cores, memory, disk, LibTorch, GPUs and their kernels, hub");
  sub->footer("Example:\n  specdec doctor --json\nExit codes: 0 nothing is missing, 3 something is missing.");
  sub->callback([&cli] {
    cli.selected = [&cli] { return cli.runners.doctor ? cli.runners.doctor(cli.global) : run_doctor(cli.global); };
  });
}

void visit_fields(Fields& f, Finding& finding) {
  f.type("DoctorCheck", "A check of this machine.");
  f("name", finding.name);
  f("ok", finding.good);
  f("text", finding.text);
}

void describe_doctor_result(Results& results) { results.add<DoctorResult>({.commands = {"doctor"}}); }

}  // namespace specdec::cli
