// Fuzzes the reader of validation reports. An accepted report, written and read again, must give the same value, and
// must have an exit code.
#include <cstdlib>
#include <string_view>

#include "base/sha256.h"
#include "tests/base/sample_report.h"

namespace {

using namespace specdec;

void require(bool ok) {
  if (!ok) std::abort();
}

// Returns the report written and read once. A report stores means, but the struct has sums, so the first conversion may
// change a value by one rounding. Later conversions must not change it.
Json settled(const Json& json) { return to_json(validation_report_from_json(json, "fuzz")); }

}  // namespace

std::vector<std::string> fuzz_seeds() {
  Json parts = {{"config", std::string(64, '0')},
                {"header", std::string(64, '1')},
                {"tokenizer", std::string(64, '2')},
                {"weights", std::string(64, '3')}};
  parts["id"] = sha256_hex(canonical_json(parts));
  const Fingerprint f = fingerprint_from_json(parts, "seed");
  Json whole = to_json(specdec::testing::sample_report(f, f)),
       small = to_json(specdec::testing::sample_report(f, f, Verdict::kInconclusive));
  for (const char* key : {"speed", "lossless", "baseline"}) small.erase(key);
  small["segments"] = Json::array();
  return {canonical_json(whole), canonical_json(small)};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const ValidationReport report = validation_report_from_json(json, "fuzz");
    const int code = exit_code(report.verdict);
    require(code == 0 || (code >= 3 && code <= 6));
    const Json once = settled(to_json(report)), twice = settled(once);
    require(twice["verdict"] == once["verdict"] && twice["segments"].size() == once["segments"].size() &&
            twice["inputs"] == once["inputs"]);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
  return 0;
}
