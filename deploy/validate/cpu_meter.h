// How much of the machine's CPUs this process and the others use. A measured speed-up is worth nothing while others
// take the CPUs away, so the gate reads a meter before and after what it times. Tests bring their own meter.
#pragma once

#include <optional>
#include <set>
#include <string>

namespace specdec::deploy {

// CPU seconds since some start, on the CPUs that this process may use.
struct CpuTime {
  double busy = 0;  // of all processes, interrupts included
  double own = 0;   // of this process, all its threads
  // by the hypervisor for other machines, and while a limit of this process' cgroup kept it from running
  double stolen = 0;
};

class CpuMeter {
 public:
  virtual ~CpuMeter() = default;
  virtual int cpus() const = 0;                     // that this process may use
  virtual std::optional<CpuTime> read() const = 0;  // nothing where the system does not tell
};

// Linux: /proc/stat for the CPUs of this process' affinity, getrusage(), and cpu.stat of its cgroup (version 1 or 2).
class SystemCpuMeter final : public CpuMeter {
 public:
  SystemCpuMeter();
  int cpus() const override { return static_cast<int>(cpus_.size()); }
  std::optional<CpuTime> read() const override;

 private:
  std::set<int> cpus_;
  std::string throttle_file_;  // "" without a cgroup that tells
};

// Busy and stolen ticks of these CPUs in the text of /proc/stat, as seconds. Nothing where a CPU is missing or all of
// them never did anything, as in sandboxes that make the file up.
std::optional<CpuTime> parse_proc_stat(const std::string& text, const std::set<int>& cpus, double ticks_per_second);
// Seconds of throttled_usec (cgroup 2) or throttled_time (cgroup 1, nanoseconds) in a cpu.stat; 0 where neither is
// there.
double parse_throttled(const std::string& cpu_stat);

}  // namespace specdec::deploy
