// Fuzzes the bounded JSON reader and the readers of every stored format except the report. Accepted input, written and
// read again, must give the same value. A refusal must be one of specdec's own errors.
#include <cstdlib>
#include <string_view>

#include "base/schema/acceptance_record.h"
#include "base/schema/binding.h"
#include "base/schema/package_manifest.h"
#include "base/schema/shard_index.h"
#include "base/sha256.h"
#include "tests/base/sample_report.h"

namespace {

using namespace specdec;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class Read>
void try_read(const Json& json, Read read) {
  try {
    const auto value = read(json);
    const Json written = to_json(value);
    require(to_json(read(written)) == written);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData || e.kind() == ErrorKind::kModel);
  }
}

Fingerprint fingerprint(char digit) {
  Json parts = {{"config", std::string(64, digit)},
                {"header", std::string(64, '1')},
                {"tokenizer", std::string(64, '2')},
                {"weights", std::string(64, '3')}};
  parts["id"] = sha256_hex(canonical_json(parts));
  return fingerprint_from_json(parts, "seed");
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  PackageManifest m;
  m.files = {{"draft/config.json", 5, std::string(64, 'a')}, {"target/config.json", 6, std::string(64, 'b')}};
  m.target = fingerprint('a');
  m.draft = fingerprint('b');
  m.draft_kind = "prune:2";
  m.tokenizer_digest = m.target.tokenizer;
  m.report = to_json(specdec::testing::sample_report(m.target, m.draft));
  m.provenance = Json::object();
  m.created = m.tool_version = "0";
  ShardIndex index;
  index.tokenizer_digest = index.target_id = std::string(64, 'a');
  index.vocab_size = 9;
  index.shards = {{"t", "r", std::string(64, 'd'), std::string(64, 'e'), "train", 1, 2, 1}};
  AcceptanceRecord record;
  record.counts.add_step(3, 1, {0.5, 0.25});
  return {canonical_json(to_json(m)),
          canonical_json(to_json(index)),
          to_line(record),
          canonical_json(to_json(DraftBinding{m.target, "model", "ce", Json::object()})),
          R"({"a":[1,-2,3.5e10,true,null,"\u00e9\n"],"b":{"c":{}}})",
          std::string(80, '['),
          R"({"a":1,"a":2})",
          "[1e999]",
          "\"\\ud800\""};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json json;
  try {
    json = parse_json(text, "fuzz");
    const std::string canonical = canonical_json(json);
    require(canonical_json(parse_json(canonical, "again")) == canonical);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
    return 0;
  }
  try_read(json, [](const Json& j) { return package_manifest_from_json(j, "fuzz"); });
  try_read(json, [](const Json& j) { return shard_index_from_json(j, "fuzz"); });
  try_read(json, [](const Json& j) { return draft_binding_from_json(j, "fuzz"); });
  try {
    const std::string line = to_line(acceptance_record_from_line(std::string(text), "fuzz"));
    require(line.size() <= 300 && to_line(acceptance_record_from_line(line, "again")) == line);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
  return 0;
}
