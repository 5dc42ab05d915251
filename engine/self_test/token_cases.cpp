#include <algorithm>

#include "engine/decode/randomness.h"
#include "engine/decode/sampler.h"
#include "engine/self_test/kernel_cases.h"
#include "engine/self_test/random_drafts.h"

namespace specdec::self_test {

namespace {

using decode::Purpose;

constexpr size_t kRows = 4;  // of a pass

// The sums of a device are in fixed point and those of the host in fp64, which shows in the last bit of a probability.
constexpr double kSumError = 1e-6;

Values wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

std::string compare(const std::string& what, const Values& found, const Values& expected, double relative) {
  const std::string wrong = difference(CudaDtype::kFloat, found, expected, {.relative = relative});
  return wrong.empty() ? wrong : what + ", " + wrong;
}

// What a row of logits should become.
struct Sampled {
  std::vector<float> probabilities;
  double token, confidence;
};
Sampled sampled_on_host(const std::vector<float>& logits, const SamplingOptions& options, uint64_t seed) {
  Sampled out;
  std::vector<int32_t> scratch;
  out.probabilities.resize(logits.size());
  decode::distribution(logits, options, out.probabilities, scratch);
  decode::SeededRandomness randomness(seed);
  const int32_t token = options.greedy() ? decode::argmax(logits) : randomness.draw(Purpose::kDraft, out.probabilities);
  out.token = token;
  out.confidence = options.greedy() ? decode::max_probability(logits)
                                    : static_cast<double>(out.probabilities[static_cast<size_t>(token)]);
  return out;
}

std::string test_sample(const TestDevice& device, const SamplingOptions& options, size_t vocab) {
  std::vector<kernels::SampleRow> list;
  std::vector<float> logits;
  Values probabilities, tokens, confidences;
  const DeviceArray<int32_t> places(device, kRows);
  for (size_t number = 0; number < kRows; ++number) {
    kernels::SampleRow row = {};
    row.temperature = options.temperature, row.top_p = options.top_p, row.min_p = options.min_p;
    row.top_k = static_cast<int32_t>(options.top_k), row.purpose = static_cast<int32_t>(Purpose::kDraft);
    row.seed = number, row.places[1] = places.data() + number;
    list.push_back(row);
    const std::vector<float> own = random_logits(number + 1000 * vocab, vocab, number % 2 == 1);
    logits.insert(logits.end(), own.begin(), own.end());
    const Sampled expected = sampled_on_host(own, options, number);
    probabilities.insert(probabilities.end(), expected.probabilities.begin(), expected.probabilities.end());
    tokens.push_back(expected.token), confidences.push_back(expected.confidence);
  }
  const DeviceArray<kernels::SampleRow> rows(device, list);
  const DeviceArray<float> values(device, logits), sure(device, kRows);
  const DeviceArray<int32_t> drawn(device, kRows);
  const kernels::SamplePass pass = {.rows = rows.data(),
                                    .logits = values.data(),
                                    .tokens = drawn.data(),
                                    .confidences = sure.data(),
                                    .num_rows = static_cast<int32_t>(kRows),
                                    .vocab = static_cast<int32_t>(vocab)};
  finish(device, device.library.sample(device.index, &pass));
  const auto as_values = [](const std::vector<int32_t>& ids) { return Values(ids.begin(), ids.end()); };
  std::string wrong = compare("tokens", as_values(drawn.read()), tokens, 0);
  if (wrong.empty()) wrong = compare("written tokens", as_values(places.read()), tokens, 0);
  if (wrong.empty()) wrong = compare("confidences", wide(sure.read()), confidences, kSumError);
  if (!wrong.empty()) return wrong;
  // The probability of one token among many is small, so they are compared times their number.
  Values found = wide(values.read());
  for (double& x : found) x *= static_cast<double>(vocab);
  for (double& x : probabilities) x *= static_cast<double>(vocab);
  return compare("probabilities times " + std::to_string(vocab), found, probabilities, kSumError);
}

// The outcome of a task as numbers.
void append_outcome(Values& to, const kernels::VerifyOutcome& o) {
  to.insert(to.end(), {static_cast<double>(o.accepted), static_cast<double>(o.next), static_cast<double>(o.node),
                       static_cast<double>(o.failed)});
  for (const uint64_t cursor : o.cursors) to.push_back(static_cast<double>(cursor));
}
kernels::VerifyOutcome verified_on_host(VerifyRule rule, const decode::VerifyInput& input, uint64_t seed) {
  decode::SeededRandomness randomness(seed);
  std::vector<float> scratch;
  const decode::VerifyResult result = decode::verify(rule, input, randomness, scratch);
  kernels::VerifyOutcome out = {};
  out.accepted = static_cast<int32_t>(result.accepted), out.next = result.next, out.node = result.node;
  std::ranges::copy(randomness.cursors(), out.cursors);
  return out;
}

// Overlap and ratio of each node of a chain.
void append_scores(Values& to, const RandomDraft& draft) {
  for (size_t i = 0; i < draft.tokens.size(); ++i) {
    const auto token = static_cast<size_t>(draft.tokens[i]);
    to.push_back(decode::overlap(draft.p[i], draft.q[i]));
    to.push_back(std::min(1.0, static_cast<double>(draft.p[i][token]) / static_cast<double>(draft.q[i][token])));
  }
}

std::string test_verify(const TestDevice& device, VerifyRule rule, bool tree, size_t vocab, size_t count) {
  VerifyArrays arrays;
  Values expected, scored;
  for (uint64_t number = 0; number < count; ++number) {
    const RandomDraft draft = random_draft(number, tree, vocab);
    arrays.add(draft.input(), rule, 1000 + number);
    append_outcome(expected, verified_on_host(rule, draft.input(), 1000 + number));
    if (!tree) append_scores(scored, draft);
  }
  const DeviceArray<kernels::VerifyTask> tasks(device, arrays.tasks);
  const DeviceArray<kernels::VerifyNode> nodes(device, arrays.nodes);
  const DeviceArray<float> p(device, arrays.p), q(device, arrays.q), left(device, count * vocab);
  const DeviceArray<kernels::VerifyOutcome> outcomes(device, count);
  const DeviceArray<kernels::VerifyScore> scores(device, arrays.nodes.size());
  const kernels::VerifyPass pass = {.tasks = tasks.data(),
                                    .nodes = nodes.data(),
                                    .p = p.data(),
                                    .q = q.data(),
                                    .left = left.data(),
                                    .outcomes = outcomes.data(),
                                    .scores = tree ? nullptr : scores.data(),
                                    .num_tasks = static_cast<int32_t>(count),
                                    .vocab = static_cast<int32_t>(vocab)};
  finish(device, device.library.verify(device.index, &pass));
  p.read(), q.read(), left.read();  // throw if the kernel wrote outside
  Values found, found_scores;
  for (const kernels::VerifyOutcome& o : outcomes.read()) append_outcome(found, o);
  for (const kernels::VerifyScore& s : scores.read()) found_scores.insert(found_scores.end(), {s.overlap, s.ratio});
  const std::string wrong =
      compare("outcomes (of each draft: accepted, next, node, failed, 4 cursors)", found, expected, 0);
  if (!wrong.empty() || tree) return wrong;
  return compare("scores (of each token: overlap, ratio)", found_scores, scored, kSumError);
}

std::string text_of(const SamplingOptions& o) {
  std::ostringstream text;
  text << "T " << o.temperature;
  if (o.top_k > 0) text << ", top-k " << o.top_k;
  if (o.top_p < 1) text << ", top-p " << o.top_p;
  if (o.min_p > 0) text << ", min-p " << o.min_p;
  return text.str();
}

}  // namespace

void add_token_cases(Cases& cases, Extent extent) {
  const std::vector<SamplingOptions> all_options = {{.temperature = 0},
                                                    {.temperature = 1},
                                                    {.temperature = 2, .top_k = 7},
                                                    {.temperature = 1, .top_p = 0.5},
                                                    {.temperature = 1, .min_p = 0.2},
                                                    {.temperature = 0.8, .top_k = 30, .top_p = 0.7, .min_p = 0.05}};
  std::vector<size_t> vocabularies = {333}, of_drafts = {40};
  if (extent != Extent::kFew)
    vocabularies.insert(vocabularies.end(), {2, 64, 32000, 128256}), of_drafts.push_back(2000);
  if (extent == Extent::kMany) vocabularies.push_back(262144), of_drafts.insert(of_drafts.end(), {3, 513, 128256});
  for (const size_t vocab : vocabularies)
    for (const SamplingOptions& options : all_options)
      cases.push_back({"sample", shape_text({kRows, vocab}) + ", " + text_of(options),
                       [=](const TestDevice& on) { return test_sample(on, options, vocab); }});
  for (const size_t vocab : of_drafts) {
    const size_t count = extent == Extent::kFew ? 12 : vocab > 10000 ? 10 : 100;
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget, VerifyRule::kCoupled})
      for (const bool tree : {false, true})
        cases.push_back({"verify",
                         std::to_string(count) + (tree ? " trees" : " chains") + " of " + std::to_string(vocab) +
                             " tokens, rule " + to_string(rule),
                         [=](const TestDevice& on) { return test_verify(on, rule, tree, vocab, count); }});
  }
}

}  // namespace specdec::self_test
