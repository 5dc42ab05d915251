// Measures the gain of speculation. An 8B target with a draft is compared with plain decoding of the target in the same
// process; both run in rounds (whole steps on the device, without the host). The draft is the target's first layers.
// The target's later layers are scaled down until the share kAgreement of the drafted tokens is accepted, as with a
// trained draft.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/step.h"
#include "engine/forward/forward.h"
#include "tests/gpu/report.h"
#include "tests/gpu/speed.h"

namespace specdec::gpu {
namespace {

using decode::Sequence;
using model::Decoder;

constexpr double kAgreement = 0.8;

struct Sampling {
  const char* name;
  SamplingOptions options;
};
const Sampling kSamplings[] = {{"greedy", {.temperature = 0}},
                               {"T 1, top-k 40, top-p .95", {.temperature = 1, .top_k = 40, .top_p = 0.95}}};

struct Pair {
  std::shared_ptr<Decoder> target, draft;
  double scale = 1;  // factor on the output of the target's later layers
};

// Makes a target, and a draft of the target's first layers and head. Three layers of an 8B model and its head have as
// many bytes as a 1B model.
Pair make_pair() {
  Pair out;
  out.target = random_decoder(Shape::k8b);
  out.draft = std::make_shared<Decoder>(*out.target);
  const int64_t layers = std::min<int64_t>(out.target->config.num_layers - 1, 3);
  out.draft->config.num_layers = layers;
  out.draft->config.layers.resize(static_cast<size_t>(layers));
  out.draft->weights.layers.resize(static_cast<size_t>(layers));
  return out;
}

// Sets the factor by which the output of the target's later layers (after the draft's last layer) is scaled.
void rescale(Pair& pair, double scale) {
  std::vector<model::LayerWeights>& layers = pair.target->weights.layers;
  for (size_t i = pair.draft->weights.layers.size(); i < layers.size(); ++i)
    for (at::Tensor* matrix : {&layers[i].o, &layers[i].down}) matrix->mul_(scale / pair.scale);
  pair.scale = scale;
}

// Converts logits [T, V] to the sampling distributions [T, V] under top-k, temperature and top-p.
at::Tensor distributions(const at::Tensor& logits, const SamplingOptions& options) {
  auto [values, ids] = logits.topk(std::min<int64_t>(options.top_k, logits.size(1)), 1);
  const at::Tensor p = values.div(options.temperature).softmax(1);
  const at::Tensor kept = p * (p.cumsum(1) - p).lt(options.top_p);
  return at::zeros_like(logits).scatter_(1, ids, kept / kept.sum(1, true));
}

// Returns the probability that a drafted token is accepted, averaged over the positions of a text.
double agreement(const Pair& pair, const SamplingOptions& options) {
  std::vector<int32_t> text;
  for (int32_t i = 0; i < (machine().real ? 128 : 60); ++i)
    text.push_back((i * 7919 + 13) % static_cast<int32_t>(pair.target->config.vocab_size));
  std::vector<at::Tensor> logits;
  for (const Decoder* decoder : {pair.target.get(), pair.draft.get()}) {
    model::KvCache cache(decoder->config, machine().device, at::kBFloat16);
    const model::SequencePart part = {.cache = &cache, .tokens = text, .num_logits = static_cast<int64_t>(text.size())};
    logits.push_back(model::forward(*decoder, {&part, 1}).to(at::kFloat));
  }
  if (options.greedy()) return logits[0].argmax(1).eq(logits[1].argmax(1)).to(at::kFloat).mean().item<double>();
  return at::minimum(distributions(logits[0], options), distributions(logits[1], options)).sum(1).mean().item<double>();
}

// Finds the scale of the target's later layers at which the share kAgreement of drafted tokens is accepted.
double set_agreement(Pair& pair, const SamplingOptions& options) {
  double low = -12, high = 2;  // exponents of two; a larger scale means less agreement
  for (int i = 0; i < 9; ++i) {
    const double middle = (low + high) / 2;
    rescale(pair, std::exp2(middle));
    (agreement(pair, options) > kAgreement ? low : high) = middle;
  }
  rescale(pair, std::exp2(low));
  return agreement(pair, options);
}

// A batch of answers in progress. Each call of run() decodes some more rounds (steps on the device) with the given K.
class Batch {
 public:
  Batch(const Pair& pair, const SamplingOptions& options, int64_t sequences)
      : target_(decode::with_rounds(decode::make_model_runner(pair.target))),
        draft_(decode::make_model_runner(pair.draft)),
        stepper_(*target_, draft_.get()) {
    decode::Drafting drafting;
    drafting.model.emplace().fixed_k = kMostDrafted;
    for (int64_t i = 0; i < sequences; ++i) {
      decode::Request request{{}, static_cast<uint64_t>(i), {.max_tokens = 1000, .sampling = options}};
      for (int64_t at = 0; at < context(); ++at)
        request.prompt.push_back(static_cast<int32_t>((at * 7919 + 31 * i) % pair.target->config.vocab_size));
      sequences_.push_back(std::make_unique<Sequence>(stepper_, request, drafting));
      stepper_.start(*sequences_.back());
      all_.push_back(sequences_.back().get());
    }
  }

  static constexpr int kMostDrafted = 4;
  static int64_t context() { return machine().real ? 512 : 40; }

  struct Figures {
    int64_t rounds = 0, tokens = 0, drafted = 0, accepted = 0;
    double seconds = 0;           // of all measured rounds together
    double median_round = 0;      // median seconds of one round (step on the device)
    double median_on_device = 0;  // seconds from a round's first kernel to its last copy; 0 on fibers
  };
  Figures run(int k) {
    for (const auto& sequence : sequences_) sequence->replace_controller({.fixed_k = k});
    const int warm = machine().real ? 4 : 1, measured = machine().real ? 24 : 2;
    for (int i = 0; i < warm; ++i) stepper_.step(all_);  // not measured, because graphs are captured here
    Figures out;
    std::vector<double> rounds, on_device;
    const Counts before = counts();
    for (int i = 0; i < measured; ++i) {
      const double start = clock_.seconds();
      stepper_.step(all_);
      rounds.push_back(clock_.seconds() - start);
      double device = stepper_.device_seconds().target;
      for (const auto& level : stepper_.device_seconds().levels) device += level.seconds;
      on_device.push_back(device);
      out.seconds += rounds.back();
    }
    const Counts after = counts();
    out.rounds = measured;
    out.tokens = after.tokens - before.tokens;
    out.drafted = after.drafted - before.drafted;
    out.accepted = after.accepted - before.accepted;
    out.median_round = median(rounds);
    out.median_on_device = median(on_device);
    return out;
  }

 private:
  struct Counts {
    int64_t tokens = 0, drafted = 0, accepted = 0;
  };
  Counts counts() const {
    Counts out;
    for (const auto& sequence : sequences_) {
      out.tokens += static_cast<int64_t>(sequence->answer().size());
      out.drafted += sequence->counts().drafted, out.accepted += sequence->counts().accepted;
    }
    return out;
  }

  SystemClock clock_;
  std::unique_ptr<decode::CausalModel> target_, draft_;
  decode::Stepper stepper_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> all_;
};

// Returns the seconds of the forward passes of one step: one of the target and `k` of the draft. They run as graphs one
// after the other, without sampling or verification.
double passes_alone(const Pair& pair, int64_t sequences, int k) {
  static std::map<std::pair<int64_t, int>, double> measured;
  const auto [found, is_new] = measured.try_emplace({sequences, k});
  if (!is_new) return found->second;
  found->second = pass_seconds(*pair.target, {sequences, Batch::context(), k + 1}, /*graph=*/true);
  if (k > 0) found->second += k * pass_seconds(*pair.draft, {sequences, Batch::context(), 1}, /*graph=*/true);
  return found->second;
}

// Measures a batch with K = 3, 4 and 0. K = 0, plain decoding, comes last, because the draft's cache falls behind the
// text while nothing is drafted.
void measure(const Pair& pair, const Sampling& sampling, int64_t sequences) {
  Batch batch(pair, sampling.options, sequences);
  const std::string name = std::string(sampling.name) + ", batch " + std::to_string(sequences);
  std::vector<std::pair<int, Batch::Figures>> found;
  for (const int k : {3, 4, 0})
    if (sequences * (k + 1) <= kernels::kMaxProductRows) found.emplace_back(k, batch.run(k));
  const Batch::Figures& plain = found.back().second;
  for (const auto& [k, of_k] : found) {
    const double rate = static_cast<double>(of_k.tokens) / of_k.seconds;
    EXPECT_GE(of_k.tokens, of_k.rounds * sequences) << name;
    EXPECT_EQ(of_k.drafted, of_k.rounds * sequences * k) << name;
    const double passes = passes_alone(pair, sequences, k);
    record("rounds", name + ", K " + std::to_string(k),
           {{"rounds", of_k.rounds},
            {"tokens_per_second", rate},
            {"over_plain", rate * plain.seconds / static_cast<double>(plain.tokens)},
            {"draft_efficiency",
             k > 0 ? Json(static_cast<double>(of_k.accepted) / static_cast<double>(of_k.drafted)) : Json(nullptr)},
            {"tokens_per_round_and_sequence",
             static_cast<double>(of_k.tokens) / static_cast<double>(of_k.rounds * sequences)},
            {"round_seconds", of_k.median_round},
            {"on_device_seconds", of_k.median_on_device},
            {"passes_alone_seconds", passes},
            {"overhead_over_passes", of_k.median_round / passes - 1}});
  }
}

TEST(Speed, Rounds) {
  Pair pair = make_pair();
  for (const Sampling& sampling : kSamplings) {
    const double agrees = set_agreement(pair, sampling.options);
    EXPECT_NEAR(agrees, kAgreement, machine().real ? 0.05 : 0.2) << sampling.name;
    record("agreement", sampling.name,
           {{"accepted_share", agrees},
            {"scale", pair.scale},
            {"draft_layers", pair.draft->config.num_layers},
            {"target_layers", pair.target->config.num_layers}});
    for (const int64_t sequences : machine().real ? std::vector<int64_t>{1, 16, 64} : std::vector<int64_t>{1, 3})
      measure(pair, sampling, sequences);
  }
}

}  // namespace
}  // namespace specdec::gpu
