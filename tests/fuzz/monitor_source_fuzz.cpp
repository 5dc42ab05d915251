// Fuzzes the data that the monitor reads from other programs: metrics pages, a Prometheus server's answer, and lines
// with a request's figures. Accepted input must satisfy the checks below. A refusal must be one of specdec's own
// errors.
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "monitor/read/counters.h"
#include "monitor/read/foreign_record.h"

namespace {

using namespace specdec;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class F>
void try_it(F f) {
  try {
    f();
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
}

void check(const monitor::Counters& c) {
  const Json json = to_json(c);
  require(to_json(monitor::counters_from_json(json, "again")) == json);
  const monitor::Counters none = monitor::difference(c, c);
  require(none.drafts == 0 && none.accepted == 0 && none.generated == 0);
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      "# HELP x y\nvllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a\\\"b\"} "
      "4.0\r\nvllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"2\"} 1 1700000000000\n",
      "specdec:info{draft=\"a\",target=\"b\"} 1\nspecdec:spec_decode_overlap_sum_per_pos_total{position=\"0\"} "
      "2.5\ntrtllm_spec_decode_drafted_tokens_total{token_position=\"1\"} 3",
      R"({"status":"success","data":{"resultType":"vector",)"
      R"("result":[{"metric":{"__name__":"vllm:spec_decode_num_drafts_total","job":"v"},"value":[1,"10"]}]}})",
      R"({"created":1795262400,"metrics":{"speculative_decoding":{"acceptance_histogram":[8,4,10,18],)"
      R"("num_spec_steps":40,"num_accepted_draft_tokens":78,"num_draft_tokens":120,"per_step_accepted":[1],)"
      R"("per_step_drafted":[2],"acceptance_histogram_by_draft_length":{"3":[1,2,0,0]}}}})",
      R"({"request_parameters":"{\"sampling_params\":{\"temperature\":0.5,\"regex\":\"a\"}}","spec_verify_ct":4,)"
      R"("spec_num_proposed_drafts":8,"spec_num_correct_drafts":3,"spec_correct_drafts_histogram":[1,3]})",
      R"({"timings":{"draft_n":150,"draft_n_accepted":8},"domain":"a b"})",
      R"({"total_accepted_draft_tokens":3,"total_draft_tokens":6,"num_spec_steps":2,)"
      R"("acceptance_histogram":{"1":1,"2":1}})"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try_it([&] { check(monitor::parse_exposition(text, "fuzz")); });
  try_it([&] { check(monitor::parse_query_answer(text, "fuzz")); });
  try_it([&] {
    for (const AcceptanceRecord& r : monitor::foreign_records(text, "fuzz")) {
      r.validate("fuzz");
      require(r.counts.overlap_sum_at.size() == r.counts.reached_at.size());
    }
  });
  return 0;
}
