#include "deploy/validate/cpu_meter.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace specdec::deploy {

namespace {

// Reads the file to its end, because files of /proc and /sys report a size of 0. Returns "" if that fails.
std::string read_virtual_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? text.str() : "";
}

// Returns the path of cpu.stat of the cgroup that limits this process; "" if there is none. The line of
// /proc/self/cgroup is "0::/path" in version 2, "N:cpu,cpuacct:/path" in version 1.
std::string find_throttle_file() {
  std::istringstream lines(read_virtual_file("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      path = line.substr(second + 1);
    const std::string root = controllers == ",,"                              ? "/sys/fs/cgroup"
                             : controllers.find(",cpu,") != std::string::npos ? "/sys/fs/cgroup/cpu"
                                                                              : "";
    if (root.empty()) continue;
    // In a container the path may be that of the host's cgroup tree, so the root is tried too.
    for (const std::string& file : {root + path + "/cpu.stat", root + "/cpu.stat"})
      if (read_virtual_file(file).find("throttled_") != std::string::npos) return file;
  }
  return "";
}

}  // namespace

std::optional<CpuTime> parse_proc_stat(const std::string& text, const std::set<int>& cpus, double ticks_per_second) {
  CpuTime sum;
  size_t found = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("cpu", 0) != 0 || line.size() < 4 || line[3] < '0' || line[3] > '9') continue;
    std::istringstream fields(line.substr(3));
    int cpu = 0;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft_interrupts = 0, stolen = 0;
    if (!(fields >> cpu >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts) ||
        !cpus.contains(cpu))
      continue;
    fields >> stolen;  // missing in kernels before 2.6.11
    sum.busy += (user + nice + system + interrupts + soft_interrupts) / ticks_per_second;
    sum.stolen += stolen / ticks_per_second;
    ++found;
  }
  if (found == 0 || found != cpus.size() || sum.busy <= 0) return std::nullopt;
  return sum;
}

double parse_throttled(const std::string& cpu_stat) {
  std::istringstream fields(cpu_stat);
  double value = 0;
  for (std::string key; fields >> key >> value;) {
    if (key == "throttled_usec") return value / 1e6;
    if (key == "throttled_time") return value / 1e9;
  }
  return 0;
}

SystemCpuMeter::SystemCpuMeter() : throttle_file_(find_throttle_file()) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return;  // then `cpus_` stays empty and read() returns nothing
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus_.insert(cpu);
}

std::optional<CpuTime> SystemCpuMeter::read() const {
  auto time = parse_proc_stat(read_virtual_file("/proc/stat"), cpus_, static_cast<double>(::sysconf(_SC_CLK_TCK)));
  rusage own{};
  if (!time || ::getrusage(RUSAGE_SELF, &own) != 0) return std::nullopt;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  time->own = seconds(own.ru_utime) + seconds(own.ru_stime);
  if (!throttle_file_.empty()) time->stolen += parse_throttled(read_virtual_file(throttle_file_));
  return time;
}

}  // namespace specdec::deploy
