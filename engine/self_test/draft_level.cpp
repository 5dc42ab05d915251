#include "engine/self_test/draft_level.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/philox.h"
#include "engine/decode/runners/draft_shape.h"
#include "engine/decode/sampling/randomness.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/self_test/random_drafts.h"

namespace specdec::self_test {

namespace {

SamplingOptions options_of(const kernels::SampleRow& row) {
  SamplingOptions options;
  options.temperature = row.temperature, options.top_p = row.top_p, options.min_p = row.min_p,
  options.top_k = row.top_k;
  return options;
}

// Adds a random sequence and its rows to the level (the draft() call of one depth).
void add_sequence(DraftLevel& to, PhiloxStream& random, uint64_t number) {
  static const std::vector<std::vector<int>> kTrees = {{}, {}, {1, 3, 2}, {3, 2, 2}, {8, 1, 1}, {2, 1, 3}};
  static const std::array<SamplingOptions, 6> kOptions = {{{.temperature = 0},
                                                           {.temperature = 1},
                                                           {.temperature = 0.1},
                                                           {.temperature = 2, .top_k = 2},
                                                           {.temperature = 1, .top_p = 0.5},
                                                           {.temperature = 0.8, .top_k = 30, .min_p = 0.05}}};
  const decode::DraftShape shape(kTrees[random.below(kTrees.size())], 3);
  const SamplingOptions& options = kOptions[random.below(kOptions.size())];
  const int level = to.drafting == 0 ? static_cast<int>(random.below(3)) : 0;
  const auto sequence = static_cast<int32_t>(to.going.size()), root = static_cast<int32_t>(to.nodes.size());
  to.going.push_back(level > 0 && shape.chain() && random.below(5) == 0 ? 0 : 1);
  rules::AcceptanceTable& table = to.tables.emplace_back();
  for (double& bin : table.bins) bin = random.uniform();
  for (const int32_t parent : shape.parents()) {
    const bool drawn = static_cast<int32_t>(to.nodes.size()) - root < shape.begin(level);
    const bool absent = !shape.chain() && random.below(4) == 0;
    to.nodes.push_back(
        {!drawn || absent ? kernels::kAbsentNode : static_cast<int32_t>(random.below(to.vocab)), parent, -1, -1});
    to.confidences.push_back(drawn ? static_cast<float>(random.uniform()) : -1);
  }
  const bool stops = shape.chain() && random.below(2) == 0;
  for (int32_t row = 0; row < (level == 0 ? 1 : shape.size(level - 1)); ++row) {
    kernels::DraftRow out = {};
    out.options.temperature = options.temperature, out.options.top_p = options.top_p;
    out.options.min_p = options.min_p, out.options.top_k = static_cast<int32_t>(options.top_k);
    out.seed = number, out.cursor = 5;
    out.likeliest = random.below(4) == 0 ? 1 : 0;
    out.root = root, out.level_begin = root + shape.begin(level), out.width = shape.width(level);
    out.first_child = out.level_begin + row * out.width;
    out.parent = level == 0 ? -1 : root + shape.begin(level - 1) + row;
    out.rows_before = row;
    if (row > 0) out.likeliest = to.rows.back().likeliest;
    if (stops && random.below(3) == 0)
      out.stop.floor = random.uniform();
    else if (stops)
      out.stop = {.floor = 0, .overlap = 0.9, .shared = 0.3 * random.uniform(), .own = 0.1 * random.uniform()};
    to.rows.push_back(out);
    to.sequence_of.push_back(stops ? sequence : -1 - sequence);
    const std::vector<float> logits = random_logits(random.below(10000), to.vocab, random.below(2) == 0);
    to.logits.insert(to.logits.end(), logits.begin(), logits.end());
  }
}

int32_t sequence_at(int32_t marked) { return marked < 0 ? -1 - marked : marked; }

}  // namespace

DraftLevel random_draft_level(uint64_t number, size_t vocab) {
  PhiloxStream random(98, number);
  DraftLevel out;
  out.vocab = vocab;
  out.last = random.below(4) == 0;
  const uint64_t count = 1 + random.below(4);
  for (uint64_t i = 0; i < count; ++i) {
    add_sequence(out, random, number);
    out.drafting = static_cast<int32_t>(i + 1);
  }
  return out;
}

bool DraftLevel::needs_samples() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const kernels::DraftRow& row) { return row.width > 1 && row.options.temperature != 0; });
}

std::vector<kernels::SampleRow> DraftLevel::sample_rows() const {
  std::vector<kernels::SampleRow> out;
  for (const kernels::DraftRow& row : rows) {
    out.push_back(row.options);
    out.back().left_alone = row.options.temperature == 0 ? 1 : 0;
  }
  return out;
}

std::vector<kernels::DraftRow> DraftLevel::rows_at(const Memory& memory) const {
  std::vector<kernels::DraftRow> out = rows;
  for (size_t i = 0; i < out.size(); ++i) {
    kernels::DraftRow& row = out[i];
    row.target_ids = memory.ids[0] + row.first_child;
    row.going = memory.going + sequence_at(sequence_of[i]);
    if (last) continue;
    row.next_ids = memory.ids[1] + row.first_child;
    row.next = memory.next;
    if (sequence_of[i] >= 0) row.acceptance = memory.tables + sequence_of[i];
    row.drafting = memory.drafting;
  }
  return out;
}

DraftLevel::Result DraftLevel::on_host() const {
  Result out{.tokens = {}, .confidences = confidences, .going = going, .next = 0};
  for (const kernels::VerifyNode& node : nodes) out.tokens.push_back(node.token);
  std::vector<uint64_t> cursors(going.size(), 0);
  std::vector<int32_t> scratch;
  for (size_t i = 0; i < rows.size(); ++i) {
    const kernels::DraftRow& row = rows[i];
    const auto sequence = static_cast<size_t>(sequence_at(sequence_of[i]));
    if (row.rows_before == 0) {
      cursors[sequence] = row.cursor;
      for (int32_t node = row.root; node < row.level_begin; ++node)
        cursors[sequence] += nodes[static_cast<size_t>(node)].token >= 0 ? 1 : 0;
    }
    const auto put = [&](int32_t child, int32_t token, double confidence) {
      out.tokens[static_cast<size_t>(row.first_child + child)] = token;
      out.confidences[static_cast<size_t>(row.first_child + child)] = static_cast<float>(confidence);
    };
    for (int32_t child = 0; child < row.width; ++child) put(child, kernels::kAbsentNode, 0);
    if (going[sequence] == 0) continue;
    if (row.parent < 0 || nodes[static_cast<size_t>(row.parent)].token >= 0) {
      std::vector<float> left(logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                              logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
      const SamplingOptions options = options_of(row.options);
      const bool greedy = options.greedy();
      const double sure = greedy ? decode::max_probability(left) : 0;
      if (!greedy) decode::distribution(left, options, left, scratch);
      const float none = greedy ? kMasked : 0.0f, least = greedy ? std::nextafter(kMasked, 0.0f) : rules::kLeastDrawn;
      const auto likely = std::count_if(left.begin(), left.end(), [&](float x) { return x >= least; });
      decode::SeededRandomness randomness(row.seed);
      for (int32_t child = 0; child < std::clamp<int64_t>(likely, 1, row.width); ++child) {
        randomness.set_cursors({cursors[sequence], 0, 0, 0});
        const bool draws = !greedy && row.likeliest == 0;
        const int32_t token = draws ? randomness.draw(decode::Purpose::kDraft, left) : decode::argmax(left);
        if (draws) ++cursors[sequence];
        put(child, token, !greedy ? left[static_cast<size_t>(token)] : row.width == 1 ? sure : 0);
        left[static_cast<size_t>(token)] = none;
      }
    }
    if (last || row.rows_before > 0) continue;
    const auto confidence = [&](int at) {
      return static_cast<double>(out.confidences[static_cast<size_t>(row.root + at)]);
    };
    if (sequence_of[i] >= 0 &&
        rules::stops(row.stop, tables[sequence], row.first_child + 1 - row.root, confidence, drafting))
      out.going[sequence] = 0;
    else
      ++out.next;
  }
  return out;
}

}  // namespace specdec::self_test
