#include "engine/decode/round/host_round.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/rules/draft_rules.h"

namespace specdec::decode {

// Removes the deepest level of the draft, as if drafting had stopped before it. Returns false if nothing is drafted.
bool HostRound::Part::cut_level() {
  if (depth == 0) return false;
  std::vector<int32_t>&drafted = outcome->drafted, &parents = outcome->parents;
  while (!drafted.empty() && depth_of(drafted.size() - 1, parents) == depth) drafted.pop_back(), parents.pop_back();
  q_of.resize(std::min(q_of.size(), drafted.size()));
  outcome->confidences.resize(std::min(outcome->confidences.size(), drafted.size()));
  ++outcome->cut;
  --depth;
  from_text = from_text && depth > 0;
  processors.start(slot->processors);
  return true;
}

// Initialises the state of each sequence (Part). Reserves its rows of q: one after the text, and one for every draft
// node that may have children.
void HostRound::begin(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes) {
  if (parts_.size() < slots.size()) parts_.resize(slots.size());
  num_parts_ = slots.size();
  const auto vocab = static_cast<size_t>(target_.vocab_size());
  size_t rows = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    Part& part = parts_[i];
    const RoundSlot& slot = slots[i];
    part.slot = &slot;
    part.outcome = &outcomes[i];
    part.outcome->clear();
    part.drafting = slot.k > 0;
    part.from_text = false;
    part.depth = 0;
    part.level = part.num_q = 0;
    part.q_of.clear();
    part.processors.start(slot.processors);
    part.q_row = rows;
    if (slot.given) rows += slot.given->q.size() / vocab;
    if (!part.greedy() && part.drafting) rows += 1 + static_cast<size_t>(tree_nodes(slot.tree, slot.k - 1));
  }
  if (q_.size() < rows * vocab) q_.resize(rows * vocab);
  for (Part& part : parts())
    if (part.slot->given) take_given(part);
}

void HostRound::take_given(Part& part) {
  const DraftTokens& given = *part.slot->given;
  const auto vocab = static_cast<size_t>(target_.vocab_size());
  part.from_text = given.from_text;
  part.depth = given.depth;
  part.q_of = given.q_of;
  part.num_q = given.q.size() / vocab;
  part.outcome->drafted = given.tokens;
  part.outcome->parents = given.parents;
  part.outcome->confidences = given.confidences;
  std::copy(given.q.begin(), given.q.end(), q_.begin() + static_cast<std::ptrdiff_t>(part.q_row * vocab));
}

bool HostRound::run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) {
  seconds.levels.clear();
  seconds.measured = clock_ != nullptr;
  begin(slots, outcomes);
  for (Part& part : parts())
    if (part.drafting) draft_with(*part.slot->drafter, seconds);
  const double started = clock_ ? clock_->seconds() : 0;
  verify_all();
  if (clock_) seconds.target = clock_->seconds() - started;
  return true;
}

// Draws a node's children from its logits, without replacement, so that siblings differ. Takes the likeliest tokens if
// the text is greedy, and for the target rule, which allows any draft. Returns false if no child was drawn: the logits
// cannot be sampled (a failure of the draft), the logits processors leave no token, or the grammar's mask is late. The
// last two are not failures, because the target may never reach this node.
bool HostRound::draft_children(Part& part, int32_t parent, std::span<float> logits) {
  const RoundSlot& slot = *part.slot;
  RoundOutcome& out = *part.outcome;
  part.go_to(parent);
  if (slot.processors && slot.processors->apply(logits) != LogitsProcessorState::Applied::kDone) return false;
  const size_t row = part.num_q;
  const int width = part.chain() ? 1 : slot.tree[static_cast<size_t>(part.depth)];
  const bool greedy = part.greedy();
  const std::span<float> q =
      greedy ? logits : std::span<float>(q_.data() + (part.q_row + row) * logits.size(), logits.size());
  const float none = greedy ? -std::numeric_limits<float>::infinity() : 0.f;
  double confidence = 1;
  try {
    if (greedy && part.chain() && slot.wants_confidences) confidence = max_probability(logits);
    if (!greedy) distribution(logits, slot.sampling, q, ids_);
  } catch (const Error&) {
    out.draft_failure = std::current_exception();
    return false;
  }
  std::span<float> left = q;
  // q must not be changed, because verification needs it.
  if (!greedy && width > 1) {
    scratch_.assign(q.begin(), q.end());
    left = scratch_;
  }
  const auto likely = [&] {
    return std::count_if(q.begin(), q.end(), [](float x) { return x >= rules::kLeastDrawn; });
  };
  const int most = greedy || width == 1 ? width : static_cast<int>(std::clamp<int64_t>(likely(), 1, width));
  for (int child = 0; child < most; ++child) {
    if (child > 0 && greedy && std::none_of(left.begin(), left.end(), [&](float x) { return x > none; })) break;
    int32_t token = -1;
    try {
      if (greedy || slot.rule == VerifyRule::kTarget)
        token = argmax(left);
      else if (slot.rule == VerifyRule::kCoupled)
        token = slot.randomness->draw_at(part.before() + part.depth, left);
      else
        token = slot.randomness->draw(Purpose::kDraft, left);
    } catch (const Error&) {
      if (child > 0) break;
      out.draft_failure = std::current_exception();
      return false;
    }
    out.drafted.push_back(token);
    out.parents.push_back(parent);
    part.q_of.push_back(row);
    if (part.chain()) out.confidences.push_back(greedy ? confidence : q[static_cast<size_t>(token)]);
    if (width > 1) left[static_cast<size_t>(token)] = none;
  }
  if (!greedy) ++part.num_q;
  return true;
}

// Draws children for every node of the deepest level, or after the text if nothing is drafted yet. `row` is the first
// logits row of this level. Returns false if drafting stops here.
bool HostRound::draft_level(Part& part, int64_t row) {
  const RoundSlot& slot = *part.slot;
  RoundOutcome& out = *part.outcome;
  const size_t first = part.level, last = out.drafted.size();
  const int64_t parents = part.depth == 0 ? 1 : static_cast<int64_t>(last - first);
  for (int64_t i = 0; i < parents; ++i) {
    const int32_t parent = part.depth == 0 ? -1 : static_cast<int32_t>(first) + static_cast<int32_t>(i);
    if (!draft_children(part, parent, draft_rows_.row(row + i)) && out.draft_failure) break;
  }
  if (out.drafted.size() == last) return false;
  part.level = last;
  ++part.depth;
  if (slot.processors && part.chain()) {  // the mask after the last token is computed while the models run
    part.go_to(static_cast<int32_t>(out.drafted.size()) - 1);
    slot.processors->prepare();
  }
  if (out.draft_failure || part.depth >= slot.k) return false;
  out.stopped_early = part.chain() && slot.stop && slot.stop->stops(out.confidences, static_cast<int>(active_.size()));
  return !out.stopped_early;
}

// Sets the input of the draft's next pass. A chain continues from its last token. For a tree, the draft reads all nodes
// again, because tokens of a level must not see each other, and a mask can only separate tokens within one pass.
void HostRound::add_feed(Part& part) {
  const RoundSlot& slot = *part.slot;
  const std::vector<int32_t>& drafted = part.outcome->drafted;
  part.feed_parents.clear();
  if (part.depth == 0) {
    part.feed.assign(slot.text.begin() + slot.drafter->length(slot.draft), slot.text.end());
    part.feed_rows = 1;
  } else if (part.chain()) {
    part.feed.assign(1, drafted.back());
    part.feed_rows = 1;
  } else {
    slot.drafter->truncate(slot.draft, part.before());
    part.feed = drafted;
    part.feed_parents = part.outcome->parents;
    part.feed_rows = static_cast<int64_t>(drafted.size() - part.level);
  }
  extensions_.push_back({slot.draft, part.feed, part.feed_rows, part.feed_parents});
}

// Runs one pass of one draft for the sequences in `active`, all of which use this draft. If the pass throws, restores
// every cache and returns false. If the pass had only one sequence, its draft is then marked as failed.
bool HostRound::draft_pass(std::span<const size_t> active) {
  CausalModel& draft = *parts_[active.front()].slot->drafter;
  extensions_.clear();
  for (const size_t i : active) add_feed(parts_[i]);
  try {
    draft.extend(extensions_, draft_rows_);
    return true;
  } catch (const std::exception&) {
    for (const size_t i : active) {
      Part& part = parts_[i];
      const SequenceId id = part.slot->draft;
      const auto fed = static_cast<int64_t>(part.feed.size());
      const int64_t before = part.depth == 0 ? part.before() - fed
                             : part.chain()  ? part.before() + part.depth - fed
                                             : part.before();
      if (draft.length(id) > before) draft.truncate(id, before);
      if (active.size() > 1) continue;
      part.drafting = false;
      part.outcome->draft_failure = std::current_exception();
    }
    return false;
  }
}

// Runs all passes of one draft in this round.
void HostRound::draft_with(CausalModel& draft, RoundSeconds& seconds) {
  for (;;) {
    active_.clear();
    bool short_pass = true;
    for (size_t i = 0; i < num_parts_; ++i) {
      const Part& part = parts_[i];
      if (!part.drafting || part.slot->drafter != &draft) continue;
      active_.push_back(i);
      if (part.depth == 0 && part.before() - draft.length(part.slot->draft) > 2) short_pass = false;
    }
    if (active_.empty()) return;
    const double started = clock_ ? clock_->seconds() : 0;
    if (draft_pass(active_)) {
      int64_t row = 0, fed = 0;
      for (const size_t i : active_) {
        Part& part = parts_[i];
        const int64_t rows = part.feed_rows;
        fed += static_cast<int64_t>(part.feed.size());
        part.drafting = draft_level(part, row);
        row += rows;
      }
      if (clock_)
        seconds.levels.push_back(
            {&draft, clock_->seconds() - started, short_pass ? 0 : fed - static_cast<int64_t>(active_.size())});
    } else {
      // The pass over all sequences threw. Runs each sequence alone, so that only sequences whose own pass throws lose
      // their draft.
      for (const size_t i : active_)
        parts_[i].drafting = parts_[i].drafting && draft_pass({&i, 1}) && draft_level(parts_[i], 0);
    }
  }
}

}  // namespace specdec::decode
