// Measures how much CPU time this process and all others use. A measured speed-up is meaningless while other processes
// take CPU time, so the gate reads the meter before and after every timed window. Tests use a simulated meter.
#pragma once

#include <optional>
#include <set>
#include <string>

namespace specdec::deploy {

// CPU seconds since an arbitrary start, on the CPUs that this process may use.
struct CpuTime {
  double busy = 0;  // CPU seconds of all processes, including interrupts
  double own = 0;   // CPU seconds of all threads of this process
  // CPU seconds that the hypervisor gave to other virtual machines, or in which the cgroup's CPU limit stopped this
  // process.
  double stolen = 0;
};

class CpuMeter {
 public:
  virtual ~CpuMeter() = default;
  virtual int cpus() const = 0;                     // CPUs that this process may use
  virtual std::optional<CpuTime> read() const = 0;  // none if the system does not report it
};

// Reads /proc/stat of Linux for the CPUs of this process's affinity, getrusage(), and cpu.stat of its cgroup (version 1
// or 2).
class SystemCpuMeter final : public CpuMeter {
 public:
  SystemCpuMeter();
  int cpus() const override { return static_cast<int>(cpus_.size()); }
  std::optional<CpuTime> read() const override;

 private:
  std::set<int> cpus_;
  std::string throttle_file_;  // "" if no cgroup reports throttling
};

// Sums the busy and stolen ticks of these CPUs in the text of /proc/stat, as seconds. Returns none if a CPU is missing,
// or if all busy counts are 0, as in sandboxes that emulate the file.
std::optional<CpuTime> parse_proc_stat(const std::string& text, const std::set<int>& cpus, double ticks_per_second);
// Returns throttled_usec (cgroup 2) or throttled_time (cgroup 1, nanoseconds) of a cpu.stat in seconds; 0 if both are
// missing.
double parse_throttled(const std::string& cpu_stat);

}  // namespace specdec::deploy
