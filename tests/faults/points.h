// Runs a function under every type of fault that a file system can produce. Also checks what a power cut after any of
// the function's changes may leave. The test must link specdec_faults. A point is the number n of the change (or flush,
// write, read) that fails. SPECDEC_FAULTS=all tests every point; otherwise a tenth of the points is drawn with the seed
// SPECDEC_FAULT_SEED, which is printed. The default seed is 1, so that the same commit always meets the same faults;
// the nightly run draws a fresh seed.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "tests/base/scratch.h"
#include "tests/faults/power_cut.h"

namespace specdec::testing {

class Points {
 public:
  Points() {
    const char* seed = std::getenv("SPECDEC_FAULT_SEED");
    seed_ = seed && *seed ? std::strtoull(seed, nullptr, 10) : 1;
    random_.seed(seed_);
    const char* which = std::getenv("SPECDEC_FAULTS");
    all_ = which && std::string(which) == "all";
    std::printf("faults: SPECDEC_FAULT_SEED=%llu, %s points\n", static_cast<unsigned long long>(seed_),
                all_ ? "all" : "a tenth of the");
  }
  // Returns numbers of operations that shall fail, from 1 to n in ascending order. With SPECDEC_FAULTS=all returns all
  // n, otherwise a random tenth of them, but at least `least` (if n allows).
  std::vector<int> of(int n, int least = 3) {
    std::vector<int> points(static_cast<size_t>(std::max(n, 0)));
    for (int i = 0; i < n; ++i) points[static_cast<size_t>(i)] = i + 1;
    if (all_) return points;
    std::shuffle(points.begin(), points.end(), random_);
    points.resize(std::min(points.size(), static_cast<size_t>(std::max(least, (n + 9) / 10))));
    std::sort(points.begin(), points.end());
    return points;
  }
  uint64_t number() { return random_(); }

 private:
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  bool all_ = false;
};

// Returns how many operations of f the fault of `variable` could hit: changes, flushes, writes or reads of files (see
// faults.cpp).
inline int count_points(const char* variable, const std::function<void()>& f) {
  const Scratch scratch;
  put(scratch / "counter", std::string(8, '\0'));
  const int code = in_child(variable, "0", [&] {
    ::setenv("SPECDEC_FAULT_COUNTER", (scratch / "counter").c_str(), 1);
    f();
  });
  EXPECT_EQ(code, 0);
  int64_t n = 0;
  std::memcpy(&n, get(scratch / "counter").data(), sizeof n);
  return static_cast<int>(n);
}

// Runs f several times. In each run one numbered operation meets one type of fault; `points` draws the numbers. After a
// short write or an interrupted call, f must succeed. After any other fault, f may instead end with exit code 74. Calls
// check(true) if f succeeded, else check(false).
inline void for_each_fault(Points& points, const std::function<void()>& before, const std::function<void()>& f,
                           const std::function<void(bool done)>& check) {
  for (const char* variable : {"SPECDEC_EIO_AT", "SPECDEC_ENOSPC_AT", "SPECDEC_EDQUOT_AT", "SPECDEC_FSYNC_AT",
                               "SPECDEC_READ_AT", "SPECDEC_SHORT_AT", "SPECDEC_EINTR_AT"}) {
    const bool overcome = std::string(variable) == "SPECDEC_SHORT_AT" || std::string(variable) == "SPECDEC_EINTR_AT";
    before();
    const int n = count_points(variable, f);
    for (const int point : points.of(n)) {
      SCOPED_TRACE(std::string(variable) + "=" + std::to_string(point) + " of " + std::to_string(n));
      before();
      const int code = in_child(variable, std::to_string(point), f);
      EXPECT_TRUE(code == 0 || (code == 74 && !overcome)) << "exit " << code;
      check(code == 0);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Calls before(), which prepares `root`, and records the changes that f makes in `root`. For each change that `points`
// draws, puts into `root` what a power cut after that change may leave, and calls check. `done` is true if f had made
// all its changes before the cut. Returns the number of changes.
inline int for_each_power_cut(Points& points, const fs::path& root, const std::function<void()>& before,
                              const std::function<void()>& f, const std::function<void(bool done)>& check) {
  const Scratch scratch;
  before();
  fs::copy(root, scratch / "start", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  EXPECT_EQ(in_child("SPECDEC_FAULT_JOURNAL", (scratch / "journal").string(),
                     [&] {
                       ::setenv("SPECDEC_FAULT_BELOW", root.c_str(), 1);
                       f();
                     }),
            0);
  const PowerCut cut(scratch / "journal", scratch / "start", root.string());
  const int n = static_cast<int>(cut.changes());
  std::vector<int> moments = points.of(n, 5);
  if (moments.empty() || moments.back() != n) moments.push_back(n);
  for (const int moment : moments)
    for (const Lost lost : {Lost::kAll, Lost::kContents, Lost::kSome, Lost::kSome}) {
      const uint64_t seed = points.number();
      SCOPED_TRACE("power cut after change " + std::to_string(moment) + " of " + std::to_string(n) +
                   (moment > 0 ? " (" + cut.name(static_cast<size_t>(moment) - 1) + ")" : "") + ", lost " +
                   std::to_string(static_cast<int>(lost)) + ", seed " + std::to_string(seed));
      cut.restore(static_cast<size_t>(moment), lost, seed, root);
      check(moment == n);
      if (::testing::Test::HasFailure()) return n;
    }
  return n;
}

}  // namespace specdec::testing
