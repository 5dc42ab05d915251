// A fixture for tests of whole runs: a toy target, data, and the options of a run.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "distill/run/run.h"
#include "distill/train/contexts.h"
#include "tests/distill/toy.h"

namespace specdec::distill {

using namespace specdec::testing;

struct Project {
  Scratch scratch;
  SystemClock clock;
  DistillOptions options;

  explicit Project(size_t holdout = 40, size_t train = 150, const model::Decoder& target = toy_decoder(3, 1)) {
    fs::create_directories(scratch / "target");
    model::save_decoder(target, scratch / "target");
    toy_tokenizer(scratch / "target");
    write_data(scratch / "data", scratch / "target", toy_rows(train, 5), toy_rows(holdout, 6));
    options.target = (scratch / "target").string();
    options.data = (scratch / "data").string();
    options.out = (scratch / "run").string();
    options.draft = "prune:2";
    options.learning_rate = 5e-3;
    options.batch_tokens = 200;
    options.max_steps = 120;
    options.device.device = "cpu";
    options.device.threads = 1;
  }
  DistillResult run() { return distill::run(options, {}, clock); }
  // Returns the rows on which the verdict was measured: the held-out prompts that judge the draft (verdict half), with
  // the target's answers.
  std::vector<TokenRow> judged_rows() const {
    HeldOut h = split_held_out(toy_rows(40, 6), 64, 1000);
    put_answers(answers_from_json(Json::parse(get(scratch / "run/contexts.json")), 24, "file"), {48}, "file", h);
    return h.verdict;
  }
};

}  // namespace specdec::distill
