// Measures `monitor check` of N acceptance records in its own process: seconds, peak memory, and start-up without
// records.
//
//   cmake --build build --target monitor_check_bench && build/tests/monitor_check_bench build/bin/specdec [N]
//
// Prints one JSON object. private_mb is the largest RssAnon + RssShmem in /proc/PID/status, sampled every millisecond;
// max_rss_mb, from wait4, also includes pages of the program and of files, so it is an upper bound.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "tests/base/sample_package.h"
#include "tests/monitor/traffic.h"

namespace specdec {

namespace {

const std::vector<double> kHazards = {.8, .75, .65, .55, .45, .4, .35};
const std::array<const char*, 6> kDomains = {"customer-support", "code",      "maths",
                                             "german-emails",    "summaries", "extraction"};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RolloutFigures rollout(uint64_t stream) {
  monitor::Traffic traffic(stream);
  RolloutFigures r;
  r.k = 7;
  r.verify = "token";
  monitor::StratumBaseline nothing;
  nothing.overlap.assign(7, 0.0);
  double sum = 0;
  for (int i = 0; i < 3000; ++i) {
    const AcceptanceCounts counts = traffic.chain(kHazards, 7);
    r.counts.add(counts);
    sum += monitor::observe(counts, nothing, 0).x / 3000;
  }
  r.alpha = {sum, {sum - 0.003, sum + 0.003}, 3000};
  return r;
}

// Writes `records` lines by repeating 10,000 different requests. Returns the size of the file in bytes.
uint64_t write_records(const fs::path& file, const PackageManifest& m, int64_t records) {
  monitor::Traffic traffic(99);
  std::vector<std::string> lines;
  for (int i = 0; i < 10000; ++i) {
    AcceptanceRecord r;
    r.time = 1795000000 + i;
    r.segment = kDomains[static_cast<size_t>(i) % kDomains.size()];
    r.draft = m.draft.id.substr(0, 12);
    r.target = m.target.id.substr(0, 12);
    r.counts = traffic.chain(kHazards, 7);
    r.counts.emitted = r.counts.accepted + r.counts.steps;
    lines.push_back(to_line(r) + "\n");
  }
  std::ofstream out(file, std::ios::binary);
  for (int64_t i = 0; i < records; ++i) out << lines[static_cast<size_t>(i) % lines.size()];
  out.close();
  return fs::file_size(file);
}

struct Run {
  double seconds = 0, cpu_seconds = 0, private_mb = 0, max_rss_mb = 0;
  int exit_code = 0;
};

double private_mb(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  double kb = 0;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:"))
      kb += std::strtod(line.c_str() + line.find(':') + 1, nullptr);
  return kb / 1024;
}

Run run(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const double started = seconds_now();
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, 1);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  Run r;
  int status = 0;
  rusage usage{};
  while (::wait4(pid, &status, WNOHANG, &usage) == 0) {
    r.private_mb = std::max(r.private_mb, private_mb(pid));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  r.seconds = seconds_now() - started;
  const auto cpu = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  r.cpu_seconds = cpu(usage.ru_utime) + cpu(usage.ru_stime);
  r.max_rss_mb = static_cast<double>(usage.ru_maxrss) / 1024;
  r.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}

Json to_json(const Run& r) {
  return {{"seconds", r.seconds},
          {"cpu_seconds", r.cpu_seconds},
          {"private_mb", r.private_mb},
          {"max_rss_mb", r.max_rss_mb},
          {"exit_code", r.exit_code}};
}

int bench(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "expected: monitor_check_bench build/bin/specdec [records]\n");
    return 2;
  }
  const std::string program = argv[1];
  const int64_t records = argc > 2 ? std::atoll(argv[2]) : 1000000;
  const testing::Scratch dir;
  const PackageManifest m = testing::write_package(dir / "p", 0, [](ValidationReport& report) {
    report.rollout = rollout(1);
    for (size_t i = 0; i < kDomains.size(); ++i)
      report.segments.push_back({kDomains[i], {0.7, {0.69, 0.71}, 500}, rollout(2 + i)});
  });
  const uint64_t bytes = write_records(dir / "log.jsonl", m, records);
  std::ofstream(dir / "none.jsonl").close();
  Json runs = Json::array(), starts = Json::array();
  for (int i = 0; i < 5; ++i) {
    const auto check = [&](const std::string& log) {
      const std::string at = dir.root().string() + "/";
      return run(program, {"-q", "monitor", "check", "--package", at + "p", "--source", at + log, "--state",
                           at + log + std::to_string(i) + ".db"});
    };
    starts.push_back(to_json(check("none.jsonl")));
    runs.push_back(to_json(check("log.jsonl")));
  }
  const auto best = [](const Json& all) {
    double least = 1e9;
    for (const Json& r : all) least = std::min(least, r["seconds"].get<double>());
    return least;
  };
  std::printf("%s\n", Json({{"records", records},
                            {"bytes", bytes},
                            {"seconds", best(runs)},
                            {"start_seconds", best(starts)},
                            {"runs", runs},
                            {"starts", starts}})
                          .dump(1)
                          .c_str());
  return 0;
}

}  // namespace

}  // namespace specdec

int main(int argc, char** argv) { return specdec::bench(argc, argv); }
