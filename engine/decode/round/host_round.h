// A round on the host: calls the draft once per level and then the target once, and draws and verifies in between. It
// supports every slot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/decode/round/round.h"

namespace specdec::decode {

class HostRound final : public RoundRunner {
 public:
  // The type of the verification function. Tests replace the default by rules that are known to be wrong.
  using VerifyFn = VerifyResult (*)(VerifyRule, const VerifyInput&, Randomness&, std::vector<float>& scratch);

  // `clock` times the passes; if it is null, they are not timed. `target` must outlive this object.
  HostRound(CausalModel& target, const Clock* clock, VerifyFn verify_fn)
      : target_(target), clock_(clock), verify_fn_(verify_fn) {}

  bool takes(std::span<const RoundSlot>) override { return true; }
  // If a draft fails, its sequence continues without a draft. If the target's pass throws, every outcome keeps its
  // drafted tokens for the next round. If the pass throws CacheFull and the round has one sequence, drops the draft's
  // deepest level and tries again, and throws only when no level is left.
  bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) override;

 private:
  // The state of one sequence during a round. The tokens drafted so far are in `outcome`.
  struct Part {
    const RoundSlot* slot = nullptr;
    RoundOutcome* outcome = nullptr;
    bool drafting = false, from_text = false;
    int depth = 0;     // number of drafted levels
    size_t level = 0;  // first node of the deepest level
    size_t q_row = 0;  // index of the part's first row in q_
    size_t num_q = 0;
    int64_t p_row = 0;         // first of the part's (number of nodes + 1) rows in target_rows_
    std::vector<size_t> q_of;  // by node: the row that its token was drawn from, relative to q_row
    ProcessorWalk processors;
    std::vector<int32_t> pass, pass_parents;  // the target's input: [last token, nodes…]; parents empty for a chain
    std::vector<int32_t> feed, feed_parents;  // the input of the draft's next pass
    int64_t feed_rows = 0;
    std::vector<int32_t> path;  // accepted nodes

    bool chain() const { return from_text || slot->tree.empty(); }
    bool greedy() const { return slot->sampling.greedy(); }
    int64_t before() const { return static_cast<int64_t>(slot->text.size()); }
    void go_to(int32_t node) { processors.go_to(node, outcome->drafted, outcome->parents); }
    bool cut_level();
  };

  void begin(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes);
  void take_given(Part& part);
  // Implemented in host_round.cpp. These functions draft level by level. A level is one pass of one draft over all
  // sequences with this draft.
  void draft_with(CausalModel& draft, RoundSeconds& seconds);
  void add_feed(Part& part);
  bool draft_pass(std::span<const size_t> active);
  bool draft_level(Part& part, int64_t row);
  bool draft_children(Part& part, int32_t parent, std::span<float> logits);
  // Implemented in host_verify.cpp:
  void verify_all();
  void target_pass();
  void hold(Part& part);
  void verify_one(Part& part);
  void verify_greedy(Part& part);
  void verify_sampled(Part& part);
  static void end_with(Part& part, int32_t node);
  void score_positions(Part& part);
  std::span<Part> parts() { return {parts_.data(), num_parts_}; }

  CausalModel& target_;
  const Clock* clock_;
  VerifyFn verify_fn_;
  std::vector<Part> parts_;  // never shrinks, so that the vectors inside keep their memory
  size_t num_parts_ = 0;
  std::vector<size_t> active_;
  std::vector<Extension> extensions_;
  LogitRows draft_rows_, target_rows_;
  std::vector<float> q_, scratch_;
  // The target's logits for one sequence's nodes, before logits processors and sampling options; set only if
  // log-probabilities are wanted.
  std::vector<float> raw_;
  std::vector<int32_t> ids_;
  VerifyInput input_;
};

}  // namespace specdec::decode
