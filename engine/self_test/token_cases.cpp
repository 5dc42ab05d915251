#include <algorithm>

#include "engine/decode/sampling/randomness.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/self_test/draft_level.h"
#include "engine/self_test/kernel_cases.h"
#include "engine/self_test/random_drafts.h"

namespace specdec::self_test {

namespace {

using decode::Purpose;

constexpr size_t kRows = 4;  // rows per pass

// The device sums in fixed point and the host in fp64, so the last bits of a probability differ.
constexpr double kSumError = 1e-6;

Values as_values(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }
Values wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

std::string compare(const std::string& what, const Values& found, const Values& expected, double relative) {
  const std::string wrong = difference(CudaDtype::kFloat, found, expected, {.relative = relative});
  return wrong.empty() ? wrong : what + ", " + wrong;
}

std::string test_sample(const TestDevice& device, const SamplingOptions& options, size_t vocab) {
  std::vector<kernels::SampleRow> list;
  std::vector<float> logits;
  Values probabilities, tokens, choices;
  std::vector<int32_t> scratch;
  for (size_t number = 0; number < kRows; ++number) {
    kernels::SampleRow row = {};
    row.temperature = options.temperature, row.top_p = options.top_p, row.min_p = options.min_p;
    row.top_k = static_cast<int32_t>(options.top_k);
    list.push_back(row);
    const std::vector<float> own = random_logits(number + 1000 * vocab, vocab, number % 2 == 1);
    logits.insert(logits.end(), own.begin(), own.end());
    std::vector<float> expected(vocab);
    if (options.greedy())
      expected = own;
    else
      decode::distribution(own, options, expected, scratch);
    probabilities.insert(probabilities.end(), expected.begin(), expected.end());
    tokens.push_back(decode::argmax(own));
    const auto likely = std::ranges::count_if(expected, [](float x) { return x >= rules::kLeastDrawn; });
    choices.push_back(options.greedy() ? 1 : static_cast<double>(likely));
  }
  const DeviceArray<kernels::SampleRow> rows(device, list);
  const DeviceArray<float> values(device, logits);
  const DeviceArray<int32_t> likeliest(device, kRows), counted(device, kRows);
  const kernels::SamplePass pass = {.rows = rows.data(),
                                    .logits = values.data(),
                                    .tokens = likeliest.data(),
                                    .choices = counted.data(),
                                    .num_rows = static_cast<int32_t>(kRows),
                                    .vocab = static_cast<int32_t>(vocab)};
  finish(device, device.library.sample(device.index, &pass));
  std::string wrong = compare("tokens", as_values(likeliest.read()), tokens, 0);
  if (wrong.empty()) wrong = compare("likely tokens", as_values(counted.read()), choices, 0);
  if (!wrong.empty()) return wrong;
  // Probabilities are compared after multiplication by the vocabulary size, because they can be very small.
  Values found = wide(values.read());
  for (double& x : found) x *= static_cast<double>(vocab);
  for (double& x : probabilities) x *= static_cast<double>(vocab);
  return compare("probabilities times " + std::to_string(vocab), found, probabilities, kSumError);
}

std::string test_draft(const TestDevice& device, uint64_t number, size_t vocab) {
  const DraftLevel level = random_draft_level(number, vocab);
  const DraftLevel::Result expected = level.on_host();
  const size_t num_nodes = level.nodes.size(), num_rows = level.rows.size();
  const DeviceArray<int32_t> first_ids(device, std::vector<int32_t>(num_nodes, -7)),
      next_ids(device, std::vector<int32_t>(num_nodes, -7)), going(device, level.going),
      counts(device, std::vector<int32_t>{0, level.drafting}), tokens(device, std::vector<int32_t>(num_nodes, -7)),
      sampled(device, num_rows), choices(device, num_rows);
  const DeviceArray<rules::AcceptanceTable> tables(device, level.tables);
  const DeviceArray<kernels::VerifyNode> nodes(device, level.nodes);
  const DeviceArray<float> logits(device, level.logits), confidences(device, level.confidences);
  const DeviceArray<kernels::SampleRow> samples(device, level.sample_rows());
  const DeviceArray<kernels::DraftRow> rows(device, level.rows_at({.ids = {first_ids.data(), next_ids.data()},
                                                                   .going = going.data(),
                                                                   .next = counts.data(),
                                                                   .drafting = counts.data() + 1,
                                                                   .tables = tables.data()}));
  const auto count = static_cast<int32_t>(num_rows), width = static_cast<int32_t>(vocab);
  const bool first = level.needs_samples();
  if (first) {
    const kernels::SamplePass pass = {samples.data(), logits.data(), sampled.data(), choices.data(), count, width};
    finish(device, device.library.sample(device.index, &pass));
  }
  const kernels::DraftPass pass = {.rows = rows.data(),
                                   .logits = logits.data(),
                                   .sampled = first ? sampled.data() : nullptr,
                                   .choices = first ? choices.data() : nullptr,
                                   .nodes = nodes.data(),
                                   .tokens = tokens.data(),
                                   .confidences = confidences.data(),
                                   .num_rows = count,
                                   .vocab = width};
  finish(device, device.library.draft(device.index, &pass));
  Values found;
  for (const kernels::VerifyNode& node : nodes.read()) found.push_back(node.token);
  std::string wrong = compare("tokens", found, as_values(expected.tokens), 0);
  if (wrong.empty()) wrong = compare("confidences", wide(confidences.read()), wide(expected.confidences), kSumError);
  if (wrong.empty()) wrong = compare("who goes on", as_values(going.read()), as_values(expected.going), 0);
  if (!wrong.empty()) return wrong;
  Values drawn, expected_drawn, expected_ids;
  const std::vector<int32_t> all = tokens.read();
  for (const kernels::DraftRow& row : level.rows)
    for (int32_t node = row.first_child; node < row.first_child + row.width; ++node) {
      drawn.push_back(all[static_cast<size_t>(node)]);
      expected_ids.push_back(std::max(expected.tokens[static_cast<size_t>(node)], 0));
      expected_drawn.push_back(expected.tokens[static_cast<size_t>(node)]);
    }
  wrong = compare("tokens for the host", drawn, expected_drawn, 0);
  const auto of_nodes = [&](const DeviceArray<int32_t>& from) {
    Values out;
    const std::vector<int32_t> values = from.read();
    for (const kernels::DraftRow& row : level.rows)
      out.insert(out.end(), values.begin() + row.first_child, values.begin() + row.first_child + row.width);
    return out;
  };
  if (wrong.empty()) wrong = compare("ids", of_nodes(first_ids), expected_ids, 0);
  if (wrong.empty() && !level.last) wrong = compare("ids of the next pass", of_nodes(next_ids), expected_ids, 0);
  if (wrong.empty())
    wrong = compare("parts of the next pass", {static_cast<double>(counts.read()[0])},
                    {static_cast<double>(expected.next)}, 0);
  return wrong;
}

// Appends the outcome of a verification task as numbers.
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

// Appends the overlap and the ratio of each node of a chain.
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
  const DeviceArray<int32_t> likeliest(device, arrays.likeliest());
  const DeviceArray<kernels::VerifyOutcome> outcomes(device, count);
  const DeviceArray<kernels::VerifyScore> scores(device, arrays.nodes.size());
  const kernels::VerifyPass pass = {.tasks = tasks.data(),
                                    .nodes = nodes.data(),
                                    .p = p.data(),
                                    .q = q.data(),
                                    .left = left.data(),
                                    .likeliest = likeliest.data(),
                                    .outcomes = outcomes.data(),
                                    .scores = tree ? nullptr : scores.data(),
                                    .num_tasks = static_cast<int32_t>(count),
                                    .num_nodes = static_cast<int32_t>(arrays.nodes.size()),
                                    .vocab = static_cast<int32_t>(vocab)};
  finish(device, device.library.verify(device.index, &pass));
  p.read(), q.read(), left.read();  // these throw if the kernel wrote outside the arrays
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
  for (const size_t vocab : vocabularies)
    for (uint64_t number = 0; number < (extent == Extent::kFew ? 8 : vocab > 10000 ? 12 : 60); ++number)
      cases.push_back({"draft", "level " + std::to_string(number) + " of " + std::to_string(vocab) + " tokens",
                       [=](const TestDevice& on) { return test_draft(on, number, vocab); }});
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
