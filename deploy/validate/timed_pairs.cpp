#include "deploy/validate/timed_pairs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

namespace specdec::deploy {

namespace {

// Measures the CPU use of other processes in windows, and sums it over the windows. A window is the time between two
// readings of the meter.
class MachineSum {
 public:
  MachineSum(const CpuMeter& meter, int threads)
      : meter_(meter), cpus_(meter.cpus()), threads_(threads > 0 ? threads : std::max(1, cpus_)) {}

  void open() { before_ = meter_.read(); }

  // Ends a window of `seconds`. Returns the share of this process's CPU time that others took; 0 if the meter has no
  // reading.
  double close(double seconds) {
    const auto after = meter_.read();
    if (!before_ || !after || seconds <= 0) return 0;
    known_ = true;
    const double stolen = std::max(0.0, after->stolen - before_->stolen);
    const double neighbours = std::max(0.0, after->busy - before_->busy - (after->own - before_->own));
    // Other processes disturb only if idle CPUs are too few for this process's threads. Stolen time (cgroup limit,
    // hypervisor) always disturbs.
    const double crowded = std::max(0.0, (neighbours / seconds + threads_ - cpus_) / threads_);
    const double taken = std::clamp(crowded + stolen / seconds / threads_, 0.0, 1.0);
    seconds_ += seconds, others_ += neighbours + stolen, stolen_ += stolen, taken_ += taken * seconds;
    return taken;
  }

  MachineUse use() const {
    MachineUse use;
    use.threads = threads_;
    if (!known_) return use;
    use.cpus = cpus_;
    use.others = others_ / seconds_;
    use.stolen = stolen_ / seconds_;
    use.taken = taken_ / seconds_;
    return use;
  }

 private:
  const CpuMeter& meter_;
  int cpus_, threads_;
  std::optional<CpuTime> before_;
  bool known_ = false;
  double seconds_ = 0, others_ = 0, stolen_ = 0, taken_ = 0;
};

// Returns the time of a speculative step, in units of plain steps. It is about the same for all runs with the same K,
// however many tokens were accepted.
double step_cost(const PairFigures& run) {
  const auto steps = [](const GroupFigures& f) { return static_cast<double>(f.counts.steps + f.counts.plain_steps); };
  const double plain = run.normal.seconds * steps(run.speculative),
               speculative = run.speculative.seconds * steps(run.normal);
  return plain > 0 ? speculative / plain : 0;
}

class Timer {
 public:
  Timer(size_t count, const PairsOptions& options, const std::function<PairFigures(size_t)>& pair,
        const Instruments& instruments)
      : options_(options),
        pair_(pair),
        clock_(instruments.clock),
        machine_(instruments.meter, options.threads),
        best_(count),
        clean_(count, false),
        disagreed_(count, false),
        begun_(clock_.seconds()) {}

  TimedPairs run() {
    const size_t count = best_.size();
    for (size_t i = 0; i < count; ++i) due_.push_back(i);
    while (!due_.empty() && patient()) window();
    for (int retry = 0; retry < options_.retries && options_.tolerance > 0 && due_.empty(); ++retry) {
      look_for_disagreement();
      while (!due_.empty() && patient()) window();
    }
    TimedPairs out;
    for (auto& run : best_) out.runs.push_back(run ? std::move(*run) : PairFigures{});
    out.machine = machine_.use();
    out.machine.runs = runs_;
    out.machine.disturbed = static_cast<int64_t>(disturbed_);
    out.machine.disagreeing = disagreeing_;
    const auto alone = static_cast<size_t>(std::count(clean_.begin(), clean_.end(), true));
    out.machine.busy = 2 * alone < count || alone < std::min<size_t>(count, 4);
    out.clean = std::move(clean_);
    return out;
  }

 private:
  bool patient() const { return disturbed_ < best_.size() || clock_.seconds() - begun_ < options_.patience_seconds; }

  // Times runs until the window is long enough for a meaningful reading of the meter.
  void window() {
    std::vector<std::pair<size_t, PairFigures>> done;
    const double begun = clock_.seconds();
    machine_.open();
    while (!due_.empty()) {
      const size_t i = due_.front();
      due_.pop_front();
      PairFigures shortest = pair_(i);
      for (int repeat = 1; repeat < options_.repeats; ++repeat)
        if (PairFigures again = pair_(i); again.seconds() < shortest.seconds()) shortest = std::move(again);
      ++runs_;
      done.emplace_back(i, std::move(shortest));
      if (clock_.seconds() - begun >= options_.window_seconds) break;
    }
    const bool disturbed = machine_.close(clock_.seconds() - begun) > options_.most_taken;
    for (auto& [i, run] : done) {
      if (disturbed) {
        ++disturbed_;
        if (!clean_[i]) due_.push_back(i);  // repeated at the end, when the machine may be quieter
        if (!best_[i]) best_[i] = std::move(run);
        continue;
      }
      if (!clean_[i] || run.seconds() < best_[i]->seconds()) best_[i] = std::move(run);
      clean_[i] = true;
    }
  }

  void look_for_disagreement() {
    std::vector<double> costs;
    for (size_t i = 0; i < best_.size(); ++i)
      if (clean_[i]) costs.push_back(step_cost(*best_[i]));
    if (costs.size() < 4) return;
    const double median = quantile(costs, 0.5);
    for (size_t i = 0; i < best_.size(); ++i) {
      if (!clean_[i] || !(std::abs(std::log(step_cost(*best_[i]) / median)) > options_.tolerance)) continue;
      due_.push_back(i);
      if (!disagreed_[i]) ++disagreeing_;
      disagreed_[i] = true;
    }
  }

  const PairsOptions& options_;
  const std::function<PairFigures(size_t)>& pair_;
  const Clock& clock_;
  MachineSum machine_;
  std::deque<size_t> due_;
  std::vector<std::optional<PairFigures>> best_;
  std::vector<bool> clean_, disagreed_;
  double begun_;
  size_t disturbed_ = 0;
  int64_t runs_ = 0, disagreeing_ = 0;
};

}  // namespace

TimedPairs time_pairs(size_t count, const PairsOptions& options, const std::function<PairFigures(size_t)>& pair,
                      const Instruments& instruments) {
  return Timer(count, options, pair, instruments).run();
}

int repeats_of(double plain_seconds) { return plain_seconds < 0.25 ? 3 : 1; }

}  // namespace specdec::deploy
