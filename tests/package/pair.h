// A target, a draft and a validation report for them, in a scratch directory.
#pragma once

#include <array>

#include "base/schema/binding.h"
#include "deploy/package/package.h"
#include "tests/base/sample_report.h"
#include "tests/base/scratch.h"

namespace specdec::testing {

struct Pair {
  explicit Pair(bool in_memory = false) : dir(in_memory) {
    write_tiny_model(dir / "target", {.layers = 2, .vocab = 64, .hidden = 8});
    write_tiny_model(dir / "draft", {.vocab = 64, .hidden = 8});
    bind();
    write_report();
  }
  void bind() {
    put(dir / "draft/specdec.json",
        to_json(DraftBinding{fingerprint_model(dir / "target"), "prune:1", "ce", {{"steps", 5}}}).dump());
  }
  void write_report(Verdict verdict = Verdict::kPass) {
    put(dir / "report.json",
        to_json(sample_report(fingerprint_model(dir / "target"), fingerprint_model(dir / "draft"), verdict)).dump());
  }
  deploy::PackageOptions options() const {
    deploy::PackageOptions o;
    o.target = dir / "target";
    o.draft = dir / "draft";
    o.report = dir / "report.json";
    o.store = dir / "store";
    return o;
  }
  deploy::PackageOutcome create(int64_t now = 1795262400) const { return deploy::create_package(options(), now, {}); }

  Scratch dir;
};

// Returns every file below a directory, as a map from relative path to content.
inline std::map<std::string, std::string> contents(const fs::path& root) {
  std::map<std::string, std::string> files;
  if (fs::exists(root))
    for (const auto& e : fs::recursive_directory_iterator(root))
      if (e.is_regular_file()) files[e.path().lexically_relative(root).string()] = get(e.path());
  return files;
}

}  // namespace specdec::testing
