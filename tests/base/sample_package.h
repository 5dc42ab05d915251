// Writes a package of two tiny models and a report, for tests that read packages.
#pragma once

#include <algorithm>
#include <functional>

#include "base/fingerprint.h"
#include "base/schema/package_manifest.h"
#include "base/sha256.h"
#include "tests/base/sample_report.h"
#include "tests/base/scratch.h"

namespace specdec::testing {

// Writes the package. A different `bump` gives the draft different weights, and so another fingerprint. `change` may
// edit the report, which is sample_report() without segments, before it is written.
inline PackageManifest write_package(const fs::path& root, int bump,
                                     const std::function<void(ValidationReport&)>& change) {
  write_tiny_model(root / "target", {.layers = 2, .vocab = 64, .hidden = 8});
  write_tiny_model(root / "draft", {.bump = bump, .vocab = 64, .hidden = 8});
  PackageManifest m;
  m.target = fingerprint_model(root / "target");
  m.draft = fingerprint_model(root / "draft");
  ValidationReport report = sample_report(m.target, m.draft);
  report.segments.clear();
  change(report);
  m.report = to_json(report);
  m.allowed_failed = report.verdict != Verdict::kPass;
  m.draft_kind = "prune:1";
  m.tokenizer_digest = m.target.tokenizer;
  m.provenance = Json::object();
  m.created = "2026-11-21T12:00:00Z";
  m.tool_version = "0.1.0";
  for (const auto& e : fs::recursive_directory_iterator(root))
    if (e.is_regular_file())
      m.files.push_back({e.path().lexically_relative(root).string(), fs::file_size(e.path()), sha256_file(e.path())});
  std::sort(m.files.begin(), m.files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  put(root / "manifest.json", canonical_json(to_json(m)));
  return m;
}

}  // namespace specdec::testing
