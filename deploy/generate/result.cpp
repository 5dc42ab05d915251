// Writes the output of `specdec generate`: the JSON of --json and the summary line. Needs no LibTorch.
#include "base/verdict.h"
#include "base/version.h"
#include "deploy/generate/generate_command.h"

namespace specdec::deploy {

void visit_fields(Fields& f, GenerateOutput& output) {
  f.type("GenerateResult", "One answer and what speculation did for it.");
  f.schema("generate", 1);
  f.one_of("verdict", output.stale, {{true, "stale"}, {false, "done"}});
  decode::GenerateResult& r = output.result;
  AcceptanceCounts& c = r.counts;
  f("started", output.started);
  f("seconds", r.seconds);
  f("prompt_seconds", r.prompt_seconds);
  std::string version = kToolVersion;
  f("tool_version", version);
  f.json("inputs", output.inputs);
  f("text", output.text);
  f("token_ids", r.tokens, {0, INT32_MAX}, SIZE_MAX);
  f("drafted", c.drafted);
  f("accepted", c.accepted);
  f("emitted", c.emitted);
  f("steps", c.steps);
  f("plain_steps", c.plain_steps);
  f("drafted_at", c.drafted_at, kAnyCount, SIZE_MAX);
  f("reached_at", c.reached_at, kAnyCount, SIZE_MAX);
  f("accepted_at", c.accepted_at, kAnyCount, SIZE_MAX);
  f("overlap_sum_at", c.overlap_sum_at, kAnyNumber, SIZE_MAX);
  f("finish_reason", r.finish_reason);
}

}  // namespace specdec::deploy
