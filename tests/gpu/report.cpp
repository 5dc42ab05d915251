#include "tests/gpu/report.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace specdec::gpu {
namespace {

Json& report() {
  static Json made = {{"device", nullptr}, {"tests", Json::array()}, {"running", nullptr}, {"figures", Json::object()}};
  return made;
}

// Replaces the file in one step, so that a reader never finds half a file.
void write() {
  const char* const path = std::getenv("SPECDEC_GPU_REPORT");
  if (!path) return;
  const std::string next = std::string(path) + ".next";
  std::ofstream(next) << report().dump(2) << "\n";
  std::filesystem::rename(next, path);
}

std::string name_of(const ::testing::TestInfo& test) { return std::string(test.test_suite_name()) + "." + test.name(); }

class Listener : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    report()["running"] = name_of(test);
    write();
  }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    Json failures = Json::array();
    for (int i = 0; i < result.total_part_count(); ++i)
      if (result.GetTestPartResult(i).failed()) failures.push_back(result.GetTestPartResult(i).message());
    report()["tests"].push_back({{"name", name_of(test)},
                                 {"passed", result.Passed()},
                                 {"seconds", static_cast<double>(result.elapsed_time()) / 1e3},
                                 {"failures", failures}});
    report()["running"] = nullptr;
    write();
  }
};

}  // namespace

void start_report(Json device) {
  report()["device"] = std::move(device);
  write();
  ::testing::UnitTest::GetInstance()->listeners().Append(new Listener);
}

void record(const std::string& group, const std::string& name, Json figure) {
  report()["figures"][group][name] = std::move(figure);
  write();
}

}  // namespace specdec::gpu
