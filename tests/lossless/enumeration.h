// Runs Stepper::step() once for every outcome of its random choices, and compares the joint distribution of the first
// emitted tokens with the target's own.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "engine/decode/sampling/sampler.h"
#include "engine/decode/step.h"
#include "tests/lossless/follower.h"
#include "tests/lossless/rules.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {

struct Case {
  toy::Model::Logits target = toy::random_logits(1), draft = toy::random_logits(2);
  int64_t vocab = 3;
  SamplingOptions sampling;
  LogitsProcessors rules;
  bool rules_left_out = false;  // makes the step wrong: the draft applies the processors, verification does not
  VerifyRule rule = VerifyRule::kToken;
  std::vector<int> tree;         // Drafting::model's tree for every sequence; empty: drafts are chains
  ControllerOptions controller;  // the same for every sequence, except fixed_k (see `sequences`)
  CostModel* costs = nullptr;
  toy::Tokens prompt;          // each sequence appends its index (0 or 1) as its last prompt token
  bool without_model = false;  // there is no draft model
  bool follows = false;        // the draft reads hidden states of the target (follower.h); `draft` is not used
  bool suffix = false;         // also drafts from repetitions in the text, with the same options
  int64_t length = 3;          // number of emitted tokens per sequence whose distribution is compared
  int64_t remaining = 8;       // tokens until the answer ends; more than `length`, so that K is not reduced
  int sequences = 1;           // if 2, the second has a fixed K: the first's K − 1, or 0 if the first's is adaptive
  // Maximum number of tokens in a target pass. If a batch needs more, each of its sequences steps alone.
  int64_t room = 1 << 20;
  // Makes the step wrong: tokens drafted for a target pass that did not fit are discarded and drawn again.
  bool held_forgotten = false;
  Stepper::VerifyFn verify_fn = &verify;
  // If set, wraps the enumerator of random choices, so that a test can make the step use random numbers wrongly.
  std::function<std::unique_ptr<Randomness>(Randomness&)> wrap;
};

struct Outcome {
  double error = 0;     // largest |probability − target's probability| over all strings of tokens
  double mass = 0;      // total probability; must be 1
  double accepted = 0;  // expected number of tokens accepted in the first step of the first sequence
  int min_drafted = 1 << 20, max_drafted = 0;
  int64_t without_room = 0;  // number of target passes with more than Case::room tokens
  // Maxima over all steps: the number of tokens drafted from the sequence's own text, and the number of these that were
  // accepted.
  int from_text = 0, kept_from_text = 0;
  int64_t runs = 0;
};

struct ForgetfulStep {
  static void forget(Sequence& s) { s.held_.reset(); }
};

inline void step(const Case& c, Stepper& stepper, const std::vector<Sequence*>& batch) {
  try {
    stepper.step(batch);
  } catch (const CacheFull&) {
    for (Sequence* s : batch)
      if (c.held_forgotten) ForgetfulStep::forget(*s);
    for (Sequence* s : batch) stepper.step({&s, 1});
  }
  for (Sequence* s : batch)
    if (c.held_forgotten) ForgetfulStep::forget(*s);
}

// Returns the probability of `tokens` after `context` under the target alone.
inline double target_probability(const Case& c, toy::Tokens context, const toy::Tokens& tokens) {
  std::vector<float> row(static_cast<size_t>(c.vocab));
  std::vector<int32_t> scratch;
  double probability = 1;
  for (const int32_t t : tokens) {
    c.target(context, row);
    toy::apply_reference(c.rules, context, c.prompt.size() + 1, row);
    distribution(row, c.sampling, row, scratch);
    probability *= row[static_cast<size_t>(t)];
    context.push_back(t);
  }
  return probability;
}

// Forwards to the enumerator that all sequences of a case share. Needed because each sequence owns its Randomness.
class SharedRandomness final : public Randomness {
 public:
  explicit SharedRandomness(Randomness& shared) : shared_(shared) {}
  int32_t draw(Purpose purpose, std::span<const float> weights) override { return shared_.draw(purpose, weights); }
  bool accept(Purpose purpose, double probability) override { return shared_.accept(purpose, probability); }
  int32_t draw_at(int64_t position, std::span<const float> weights) override {
    return shared_.draw_at(position, weights);
  }

 private:
  Randomness& shared_;
};

// request_of() and drafting_of() return the request and the drafting options of sequence `index` of a case.
inline Request request_of(const Case& c, int index) {
  Request out{c.prompt, 0, {.max_tokens = c.remaining, .sampling = c.sampling}};
  out.prompt.push_back(static_cast<int32_t>(index));
  if (!c.rules_left_out) out.options.rules = std::make_shared<const LogitsProcessors>(c.rules);
  return out;
}
inline Drafting drafting_of(const Case& c, int index) {
  Drafting out{.verify = c.rule, .model = c.controller};
  if (index > 0) out.model->fixed_k = std::max(0, out.model->fixed_k - 1);
  if (c.suffix) {
    out.text = out.model;
    out.text->free_draft = true;
  }
  out.model->tree = c.tree;
  return out;
}

inline Outcome enumerate(const Case& c) {
  toy::Enumerator choices;
  std::map<std::vector<toy::Tokens>, double> joint;
  Outcome out;
  const auto first_token = static_cast<int64_t>(c.prompt.size()) + 1;
  do {
    choices.begin();
    const toy::Model::Logits ruled = [&c](std::span<const int32_t> context, std::span<float> row) {
      c.draft(context, row);
      toy::apply_reference(c.rules, context, c.prompt.size() + 1, row);
    };
    toy::Model target(c.vocab, c.target), draft(c.vocab, c.rules_left_out ? ruled : c.draft);
    target.before_pass = [&](std::span<const Extension> extensions) {
      int64_t tokens = 0;
      for (const Extension& e : extensions) tokens += static_cast<int64_t>(e.tokens.size());
      out.without_room += tokens > c.room;
      if (tokens > c.room) throw CacheFull("full");
    };
    toy::Follower follower(target, 5);
    CausalModel* const used = c.follows ? static_cast<CausalModel*>(&follower) : &draft;
    Stepper stepper(target, c.without_model ? nullptr : used, c.costs, nullptr, c.verify_fn);
    std::unique_ptr<Randomness> wrapped = c.wrap ? c.wrap(choices) : nullptr;
    std::deque<Sequence> opened;
    std::vector<Sequence*> sequences;
    for (int i = 0; i < c.sequences; ++i) {
      auto randomness = std::make_unique<SharedRandomness>(wrapped ? *wrapped : choices);
      sequences.push_back(&opened.emplace_back(stepper, request_of(c, i), drafting_of(c, i), std::move(randomness)));
      stepper.start(*sequences.back());
    }
    bool first = true;
    double accepted = 0;
    for (;;) {
      std::vector<Sequence*> batch;
      bool ended = true;
      for (Sequence* s : sequences) {
        if (static_cast<int64_t>(s->tokens().size()) >= first_token + c.length) continue;
        ended = false;
        if (stepper.ready(*s)) batch.push_back(s);
      }
      if (ended) break;
      step(c, stepper, batch);
      for (const Sequence* s : batch) {
        out.min_drafted = std::min(out.min_drafted, s->outcome().drafted);
        out.max_drafted = std::max(out.max_drafted, s->outcome().drafted);
        out.from_text = std::max(out.from_text, s->outcome().suffix_drafted);
        out.kept_from_text = std::max(out.kept_from_text, s->outcome().suffix_accepted);
      }
      if (first) accepted = sequences[0]->outcome().accepted;
      first = false;
    }
    std::vector<toy::Tokens> texts;
    for (const Sequence* s : sequences)
      texts.emplace_back(s->tokens().begin() + first_token, s->tokens().begin() + first_token + c.length);
    joint[texts] += choices.weight();
    out.mass += choices.weight();
    out.accepted += choices.weight() * accepted;
    ++out.runs;
  } while (choices.advance());

  // Compares the probability of every combination of texts, including those that never occurred, with the target's own.
  std::vector<toy::Tokens> texts(static_cast<size_t>(c.sequences), toy::Tokens(static_cast<size_t>(c.length), 0));
  for (bool more = true; more;) {
    double p = 1;
    for (size_t i = 0; i < texts.size(); ++i) {
      toy::Tokens context = c.prompt;
      context.push_back(static_cast<int32_t>(i));
      p *= target_probability(c, context, texts[i]);
    }
    const auto found = joint.find(texts);
    out.error = std::max(out.error, std::abs(p - (found == joint.end() ? 0.0 : found->second)));
    more = false;
    for (toy::Tokens& text : texts)
      for (int32_t& t : text) {
        if (more) break;
        more = ++t < c.vocab;
        if (!more) t = 0;
      }
  }
  return out;
}

}  // namespace specdec::decode
