#include "engine/decode/device/draft_levels.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include "engine/kernels/cuda_errors.h"

namespace specdec::decode {

namespace {

// Up to this many sequences, a draft pass checks whether all of them have stopped drafting, and is then skipped. With
// more sequences it is unlikely that all stop early, and the check costs each matrix product a little time.
constexpr size_t kMostResting = 4;

bool may_stop(const RoundSlot& slot) { return slot.stop && !slot.stop->limits.empty(); }

// Returns whether a sequence's drafting may stop after a level (one draft pass). A stop below a confidence floor always
// applies. A stop to save time is useful only if the next level's pass can then be skipped.
bool stops_after(const RoundSlot& slot, const DraftLevels::Level& level, const DraftLevels::Level& next) {
  const auto depth = static_cast<size_t>(level.depth);
  return may_stop(slot) && depth < slot.stop->limits.size() && (next.may_rest || slot.stop->limits[depth].floor > 0);
}

}  // namespace

kernels::SampleRow sample_row(const RoundSlot& slot) {
  kernels::SampleRow row = {};
  row.temperature = slot.sampling.temperature, row.top_p = slot.sampling.top_p, row.min_p = slot.sampling.min_p;
  row.top_k = static_cast<int32_t>(std::min<int64_t>(slot.sampling.top_k, std::numeric_limits<int32_t>::max()));
  return row;
}

void DraftLevels::plan(const Slots& all) {
  levels_.clear();
  num_rows_ = 0;
  std::vector<CausalModel*> drafters;
  for (const RoundSlot& slot : all.slots)
    if (slot.k > 0 && std::find(drafters.begin(), drafters.end(), slot.drafter) == drafters.end())
      drafters.push_back(slot.drafter);
  for (CausalModel* const drafter : drafters) plan_draft(all, *drafter);
}

void DraftLevels::plan_draft(const Slots& all, CausalModel& drafter) {
  auto& draft = dynamic_cast<RoundDraft&>(drafter.innermost());
  std::vector<RoundDraft::Reader> readers;
  for (int depth = 0;; ++depth) {
    Level level;
    level.draft = &draft, level.drafter = &drafter, level.depth = depth;
    readers.clear();
    bool all_stop = true;
    for (size_t i = 0; i < all.slots.size(); ++i) {
      const RoundSlot& slot = all.slots[i];
      if (slot.drafter != &drafter || slot.k <= depth) continue;
      const DraftShape& shape = all.shapes[i];
      readers.push_back({slot.draft, slot.text, &shape});
      level.reads |= depth == 0 && draft.unread(slot.draft, slot.text) > 2;
      level.samples_first |= shape.width(depth) > 1 && !slot.sampling.greedy();
      all_stop &= may_stop(slot);
      level.slots.push_back(i);
      level.rows.push_back(level.num_rows);
      level.num_rows += depth == 0 ? 1 : shape.size(depth - 1);
    }
    if (level.slots.empty()) return;
    level.may_rest = depth > 0 && all_stop && level.slots.size() <= kMostResting;
    level.pass = draft.make_pass(readers, depth, depth == 0 ? nullptr : levels_.back().pass.get());
    level.q_row = num_rows_;
    num_rows_ += level.num_rows;
    levels_.push_back(std::move(level));
  }
}

void DraftLevels::set_rows(const Slots& all, std::span<kernels::VerifyNode> nodes) const {
  for (const Level& level : levels_)
    for (size_t at = 0; at < level.slots.size(); ++at) {
      const size_t i = level.slots[at];
      const DraftShape& shape = all.shapes[i];
      // Greedy rows hold no distribution, and the greedy rule needs none.
      const bool none = all.slots[i].sampling.greedy();
      const auto row = static_cast<int32_t>(level.q_row) + level.rows[at];
      for (int32_t node = 0; node < shape.size(level.depth); ++node)
        nodes[static_cast<size_t>(all.first_node[i] + shape.begin(level.depth) + node)].q_row =
            none ? -1 : row + node / shape.width(level.depth);
    }
}

void DraftLevels::describe_passes(model::DeviceUpload& upload) {
  for (const Level& level : levels_)
    level.pass->describe(upload, level.depth == 0 ? static_cast<int32_t>(level.slots.size()) : 0, level.may_rest);
}

// Returns a row whose addresses are not set yet.
kernels::DraftRow DraftLevels::draft_row(const Slots& all, const Level& level, size_t i, int32_t row) const {
  const RoundSlot& slot = all.slots[i];
  const DraftShape& shape = all.shapes[i];
  kernels::DraftRow out = {};
  out.options = sample_row(slot);
  const SeededRandomness& random = seeded(slot);
  out.seed = random.seed(), out.cursor = random.cursors()[0];
  out.likeliest = slot.rule == VerifyRule::kTarget ? 1 : 0;
  out.root = all.first_node[i];
  out.level_begin = out.root + shape.begin(level.depth);
  out.width = shape.width(level.depth);
  out.first_child = out.level_begin + row * out.width;
  out.parent = level.depth == 0 ? -1 : out.root + shape.begin(level.depth - 1) + row;
  out.rows_before = row;
  const auto depth = static_cast<size_t>(level.depth);
  if (may_stop(slot) && depth < slot.stop->limits.size()) {
    out.stop = slot.stop->limits[depth];
    out.stop.own = 0;  // drafting one token less saves no verification: the target pass has a fixed number of rows
  }
  return out;
}

void DraftLevels::describe_draws(const Slots& all, model::DeviceUpload& upload, const IdPlace& id_place) {
  const size_t going = upload.add(std::vector<int32_t>(all.slots.size(), 1));
  std::vector<size_t> tables(all.slots.size());
  for (size_t i = 0; i < all.slots.size(); ++i)
    if (may_stop(all.slots[i])) tables[i] = upload.add(std::span(&all.slots[i].stop->acceptance, 1));
  for (size_t l = 0; l < levels_.size(); ++l) {
    Level& level = levels_[l];
    std::vector<kernels::DraftRow> draws;
    std::vector<size_t> slots;  // for each row, its index in level.slots
    for (size_t at = 0; at < level.slots.size(); ++at)
      for (int32_t row = 0; row < (level.depth == 0 ? 1 : all.shapes[level.slots[at]].size(level.depth - 1)); ++row) {
        draws.push_back(draft_row(all, level, level.slots[at], row));
        slots.push_back(at);
      }
    if (level.samples_first) {
      std::vector<kernels::SampleRow> samples;
      for (const kernels::DraftRow& draw : draws) {
        samples.push_back(draw.options);
        samples.back().left_alone = draw.options.temperature == 0 ? 1 : 0;
      }
      level.samples = upload.add(samples);
    }
    level.draws = upload.add(draws);
    for (size_t row = 0; row < draws.size(); ++row) {
      const kernels::DraftRow& draw = draws[row];
      const size_t i = level.slots[slots[row]];
      const auto link = [&](size_t member, size_t target) {
        upload.link(level.draws + row * sizeof(kernels::DraftRow) + member, target);
      };
      link(offsetof(kernels::DraftRow, going), going + i * sizeof(int32_t));
      link(offsetof(kernels::DraftRow, target_ids), id_place(i, draw.first_child - draw.root));
      if (level.depth + 1 >= all.slots[i].k) continue;
      const Level& next = levels_[l + 1];  // a level of the same draft, because this sequence is in it
      const auto in_next = std::find(next.slots.begin(), next.slots.end(), i) - next.slots.begin();
      link(offsetof(kernels::DraftRow, next_ids),
           next.pass->id_place(next.rows[static_cast<size_t>(in_next)] + draw.first_child - draw.level_begin));
      link(offsetof(kernels::DraftRow, next), next.pass->live_place());
      if (!stops_after(all.slots[i], level, next)) continue;
      link(offsetof(kernels::DraftRow, acceptance), tables[i]);
      link(offsetof(kernels::DraftRow, drafting), level.pass->live_place());
    }
  }
}

void DraftLevels::run(const Level& level, const model::DeviceUpload& upload, const at::Tensor& q,
                      const Results& results) const {
  const auto check = [&](int32_t code, const char* what) {
    if (code != 0)
      kernels::throw_cuda_error(code, std::string(what) + " could not be launched", library_.error_text(code));
  };
  const at::Tensor rows = q.narrow(0, level.q_row, level.num_rows);
  const auto vocab = static_cast<int32_t>(rows.size(1));
  auto* const logits = rows.mutable_data_ptr<float>();
  level.pass->run(upload, rows);
  if (level.samples_first) {
    const kernels::SamplePass pass = {.rows = upload.at<const kernels::SampleRow>(level.samples),
                                      .logits = logits,
                                      .tokens = results.sampled + level.q_row,
                                      .choices = results.choices + level.q_row,
                                      .num_rows = level.num_rows,
                                      .vocab = vocab};
    check(library_.sample(device_, &pass), "sampling");
  }
  const kernels::DraftPass pass = {.rows = upload.at<const kernels::DraftRow>(level.draws),
                                   .logits = logits,
                                   .sampled = level.samples_first ? results.sampled + level.q_row : nullptr,
                                   .choices = level.samples_first ? results.choices + level.q_row : nullptr,
                                   .nodes = results.nodes,
                                   .tokens = results.tokens,
                                   .confidences = results.confidences,
                                   .num_rows = level.num_rows,
                                   .vocab = vocab};
  check(library_.draft(device_, &pass), "drawing");
}

}  // namespace specdec::decode
