#include "engine/decode/device_round.h"

#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "engine/decode/round_models.h"
#include "engine/kernels/cuda_errors.h"
#include "engine/model/device_errors.h"
#include "engine/model/forward_cuda.h"
#include "engine/model/rope.h"

namespace specdec::decode {

namespace {

using kernels::DeviceRule;
using kernels::PagedRows;

DeviceRule device_rule(const RoundSlot& slot) {
  if (!slot.given.empty()) return DeviceRule::kTarget;  // there is no q
  if (slot.sampling.greedy()) return DeviceRule::kTokenChain;
  switch (slot.rule) {
    case VerifyRule::kToken:
      return DeviceRule::kTokenChain;
    case VerifyRule::kBlock:
      return DeviceRule::kBlockChain;
    default:
      return DeviceRule::kTarget;
  }
}

kernels::SampleRow sample_row(const RoundSlot& slot) {
  kernels::SampleRow row = {};
  row.temperature = slot.sampling.temperature, row.top_p = slot.sampling.top_p, row.min_p = slot.sampling.min_p;
  row.top_k = static_cast<int32_t>(std::min<int64_t>(slot.sampling.top_k, std::numeric_limits<int32_t>::max()));
  row.purpose = -1;
  row.seed = slot.seed;
  return row;
}

// The times between marks on a GPU's stream; without a GPU it measures nothing.
class Marks {
 public:
  explicit Marks(at::Device device) : device_(device) {}
  void clear() { used_ = 0; }
  void mark() {
    if (!device_.is_cuda()) return;
    if (used_ == events_.size()) events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[used_++].record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  // Waits until the device has reached the last mark.
  void wait() {
    if (used_ > 0) events_[used_ - 1].synchronize();
  }
  // Returns the time between marks i and i + 1, and 0 without a GPU.
  double seconds(size_t i) { return i + 1 < used_ ? events_[i].elapsedTime(events_[i + 1]) / 1e3 : 0; }

 private:
  at::Device device_;
  std::vector<c10::Event> events_;
  size_t used_ = 0;
};

// Where arrays lie in one piece of memory.
class Layout {
 public:
  template <class T>
  size_t add(int64_t count) {
    const size_t place = bytes_;
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 15) / 16 * 16;
    return place;
  }
  int64_t bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  size_t bytes_ = 0;
};

class DeviceRound final : public RoundRunner {
 public:
  DeviceRound(RoundTarget& target, const kernels::CudaLibrary& library)
      : target_(target),
        library_(library),
        device_(target.decoder().weights.embed.device()),
        upload_(device_),
        marks_(device_) {}

  bool takes(std::span<const RoundSlot> slots) override {
    const model::Decoder& target = target_.decoder();
    if (model::rope_varies(target.config.rope) || target_.pool().dtype() != target.weights.embed.scalar_type())
      return false;
    int64_t rows = 0, blocks = 0;
    std::map<RoundDraft*, std::array<int64_t, 2>> drafts;  // rows of the first pass, and blocks that are missing
    for (const RoundSlot& slot : slots) {
      const int64_t nodes = drafted_of(slot);
      if (slot.rule == VerifyRule::kCoupled || nodes + 1 > PagedRows::kMaxRows || nodes > kernels::kMaxVerifyNodes)
        return false;
      rows += nodes + 1;
      blocks += target_.cache(slot.target).blocks_missing(nodes + 1);
      if (slot.k == 0) continue;
      auto* const draft = dynamic_cast<RoundDraft*>(&slot.drafter->innermost());
      if (!draft || !draft->takes(slot.draft, slot.text, device_)) return false;
      const int64_t unread = draft->unread(slot.draft, slot.text);
      if (unread > PagedRows::kMaxRows) return false;
      auto& [first, missing] = drafts[draft];
      first += unread;
      missing += draft->cache(slot.draft).blocks_missing(unread + slot.k - 1);
    }
    for (const auto& [draft, need] : drafts)
      if (need[0] > kernels::kMaxProductRows || need[1] > draft->pool().available()) return false;
    return rows <= kernels::kMaxProductRows && blocks <= target_.pool().available();
  }

  bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) override {
    return model::with_device_errors([&] {
      const c10::InferenceMode guard;
      plan(slots);
      describe(slots);
      const int64_t captures = model::PassGraphs::captures();
      marks_.clear();
      marks_.mark();
      upload_.send();
      for (const Level& level : levels_) run_level(level);
      run_target(slots);
      const at::Tensor results = read_results();
      if (!take(slots, outcomes, static_cast<const char*>(results.const_data_ptr()))) return false;
      commit(slots, outcomes);
      tell(seconds);
      if (model::PassGraphs::captures() != captures) seconds.target = 0;  // it took longer than rounds do
      return true;
    });
  }

 private:
  // One pass of a draft, for the slots that draft a token with it.
  struct Level {
    RoundDraft* draft;
    CausalModel* drafter;
    std::unique_ptr<RoundDraft::Pass> pass;
    std::vector<size_t> slots;
    size_t first = 0;    // the level of the draft's first pass
    bool reads = false;  // more than two tokens of a text
    int64_t q_row = 0;   // of its first slot
    size_t samples = 0;  // place in the upload
  };

  static int64_t drafted_of(const RoundSlot& slot) {
    return slot.k > 0 ? slot.k : static_cast<int64_t>(slot.given.size());
  }
  static RoundDraft::Reader reader_of(const RoundSlot& slot) { return {slot.draft, slot.text, slot.k}; }

  // Makes room in the caches and describes the passes, with the ids of drafted tokens left open.
  void plan(std::span<const RoundSlot> slots) {
    levels_.clear();
    first_node_.clear();
    std::vector<CausalModel*> drafters;
    for (const RoundSlot& slot : slots)
      if (slot.k > 0 && std::find(drafters.begin(), drafters.end(), slot.drafter) == drafters.end())
        drafters.push_back(slot.drafter);
    num_q_ = 0;
    for (CausalModel* const drafter : drafters) plan_levels(slots, *drafter);
    pass_.emplace(target_.decoder());
    extended_.clear();
    extensions_.clear();
    lengths_.clear();
    int32_t nodes = 0;
    for (const RoundSlot& slot : slots) {
      model::KvCache& cache = target_.cache(slot.target);
      const int64_t count = drafted_of(slot) + 1;
      cache.reserve(cache.length() + count);
      std::vector<int32_t>& tokens = extended_.emplace_back(static_cast<size_t>(count), 0);
      tokens[0] = slot.text.back();
      std::copy(slot.given.begin(), slot.given.end(), tokens.begin() + 1);
      pass_->add({&cache, cache.length(), tokens, count});
      extensions_.push_back({slot.target, tokens, count, {}});
      lengths_.push_back(cache.length());
      first_node_.push_back(nodes);
      nodes += static_cast<int32_t>(count) - 1;
    }
    num_nodes_ = nodes;
  }

  void plan_levels(std::span<const RoundSlot> slots, CausalModel& drafter) {
    auto& draft = dynamic_cast<RoundDraft&>(drafter.innermost());
    const size_t first = levels_.size();
    std::vector<RoundDraft::Reader> readers;
    for (int depth = 0;; ++depth) {
      Level level{.draft = &draft, .drafter = &drafter, .pass = nullptr, .slots = {}, .first = first};
      readers.clear();
      for (size_t i = 0; i < slots.size(); ++i) {
        const RoundSlot& slot = slots[i];
        if (slot.drafter != &drafter || slot.k <= depth) continue;
        readers.push_back(reader_of(slot));
        level.reads |= depth == 0 && draft.unread(slot.draft, slot.text) > 2;
        level.slots.push_back(i);
      }
      if (level.slots.empty()) return;
      level.pass = draft.make_pass(readers, depth, depth == 0 ? nullptr : levels_.back().pass.get());
      level.q_row = num_q_;
      num_q_ += static_cast<int64_t>(level.slots.size());
      levels_.push_back(std::move(level));
    }
  }

  // Returns the first of a slot's rows in the target's pass.
  int32_t first_row(size_t slot) const { return first_node_[slot] + static_cast<int32_t>(slot); }

  // Fills the upload with everything that the device needs for the round.
  void describe(std::span<const RoundSlot> slots) {
    upload_.clear();
    std::vector<kernels::VerifyNode> nodes(static_cast<size_t>(num_nodes_), {0, -1, -1});
    std::vector<kernels::VerifyTask> tasks;
    std::vector<kernels::SampleRow> samples;
    for (size_t i = 0; i < slots.size(); ++i) {
      const RoundSlot& slot = slots[i];
      const auto count = static_cast<int32_t>(drafted_of(slot));
      for (int32_t node = 0; node < count; ++node) {
        kernels::VerifyNode& to = nodes[static_cast<size_t>(first_node_[i] + node)];
        to.parent = node - 1;
        if (!slot.given.empty()) to.token = slot.given[static_cast<size_t>(node)];
      }
      kernels::VerifyTask task = {};
      task.rule = device_rule(slot);
      task.first = first_node_[i], task.count = count, task.p_row = first_row(i);
      task.position = static_cast<int64_t>(slot.text.size());
      task.seed = slot.seed;
      std::copy(slot.cursors.begin(), slot.cursors.end(), task.cursors);
      tasks.push_back(task);
      samples.insert(samples.end(), static_cast<size_t>(count) + 1, sample_row(slot));
    }
    std::vector<int> depths(slots.size(), 0);
    for (const Level& level : levels_)
      for (size_t row = 0; row < level.slots.size(); ++row) {
        const size_t slot = level.slots[row];
        nodes[static_cast<size_t>(first_node_[slot] + depths[slot]++)].q_row =
            static_cast<int32_t>(level.q_row) + static_cast<int32_t>(row);
      }
    for (Level& level : levels_) level.pass->describe(upload_);
    pass_->describe(upload_, target_.graphs());
    nodes_ = upload_.add(nodes);
    tasks_ = upload_.add(tasks);
    target_samples_ = upload_.add(samples);
    std::fill(depths.begin(), depths.end(), 0);
    for (size_t l = 0; l < levels_.size(); ++l) {
      Level& level = levels_[l];
      std::vector<kernels::SampleRow> draws;
      for (const size_t i : level.slots) {
        kernels::SampleRow& row = draws.emplace_back(sample_row(slots[i]));
        if (slots[i].rule == VerifyRule::kTarget) continue;  // the draft chooses its likeliest token
        row.purpose = static_cast<int32_t>(Purpose::kDraft);
        row.cursor = slots[i].cursors[0] + static_cast<uint64_t>(depths[i]);
      }
      level.samples = upload_.add(draws);
      for (size_t row = 0; row < level.slots.size(); ++row) {
        const size_t i = level.slots[row];
        const int depth = depths[i]++;
        const size_t places = level.samples + row * sizeof(kernels::SampleRow) + offsetof(kernels::SampleRow, places);
        upload_.link(places, pass_->id_place(first_row(i) + 1 + depth));
        upload_.link(places + sizeof(void*),
                     nodes_ + static_cast<size_t>(first_node_[i] + depth) * sizeof(kernels::VerifyNode) +
                         offsetof(kernels::VerifyNode, token));
        if (depth + 1 >= slots[i].k) continue;
        const Level& next = levels_[l + 1];  // of the same draft, since this slot is in it
        const auto at = std::find(next.slots.begin(), next.slots.end(), i) - next.slots.begin();
        upload_.link(places + 2 * sizeof(void*), next.pass->id_place(static_cast<size_t>(at)));
      }
    }
    const int64_t vocab = target_.decoder().config.vocab_size, count = static_cast<int64_t>(slots.size());
    const auto rows = [&](at::Tensor& memory, int64_t n) {
      if (!memory.defined() || memory.size(0) < n)
        memory = at::empty({n, vocab}, at::TensorOptions(device_).dtype(at::kFloat));
    };
    rows(q_, std::max<int64_t>(num_q_, 1));
    rows(p_, num_nodes_ + count);
    rows(left_, count);
    Layout layout;
    at_ = {.draft_tokens = layout.add<int32_t>(num_q_),
           .confidences = layout.add<float>(num_q_),
           .target_tokens = layout.add<int32_t>(num_nodes_ + count),
           .outcomes = layout.add<kernels::VerifyOutcome>(count),
           .scores = layout.add<kernels::VerifyScore>(num_nodes_),
           .bytes = 0};
    at_.bytes = layout.bytes();
    if (!results_.defined() || results_.numel() < at_.bytes) {
      results_ = at::empty({2 * at_.bytes}, at::TensorOptions(device_).dtype(at::kByte));
      copied_ = at::empty({2 * at_.bytes}, at::TensorOptions(at::kByte).pinned_memory(device_.is_cuda()));
    }
  }

  template <class T>
  T* result(size_t place) {
    return reinterpret_cast<T*>(static_cast<char*>(results_.mutable_data_ptr()) + place);
  }
  int32_t device_index() const { return device_.is_cuda() ? device_.index() : 0; }
  void check(int32_t code, const char* what) const {
    if (code != 0)
      kernels::throw_cuda_error(code, std::string(what) + " could not be launched", library_.error_text(code));
  }

  void run_level(const Level& level) {
    const auto count = static_cast<int64_t>(level.slots.size());
    const at::Tensor rows = q_.narrow(0, level.q_row, count);
    level.pass->run(upload_, rows);
    const kernels::SamplePass pass = {.rows = upload_.at<const kernels::SampleRow>(level.samples),
                                      .logits = rows.mutable_data_ptr<float>(),
                                      .tokens = result<int32_t>(at_.draft_tokens) + level.q_row,
                                      .confidences = result<float>(at_.confidences) + level.q_row,
                                      .num_rows = static_cast<int32_t>(count),
                                      .vocab = static_cast<int32_t>(rows.size(1))};
    check(library_.sample(device_index(), &pass), "sampling");
    marks_.mark();
  }

  void run_target(std::span<const RoundSlot> slots) {
    const auto count = static_cast<int64_t>(slots.size()), num_p = num_nodes_ + count;
    const auto vocab = static_cast<int32_t>(p_.size(1));
    const Observation read = target_.observe(extensions_);
    p_.narrow(0, 0, num_p).copy_(pass_->run(upload_, read.observer, read.layers));
    const kernels::SamplePass rows = {.rows = upload_.at<const kernels::SampleRow>(target_samples_),
                                      .logits = p_.mutable_data_ptr<float>(),
                                      .tokens = result<int32_t>(at_.target_tokens),
                                      .confidences = nullptr,
                                      .num_rows = static_cast<int32_t>(num_p),
                                      .vocab = vocab};
    check(library_.sample(device_index(), &rows), "sampling");
    const kernels::VerifyPass verification = {.tasks = upload_.at<const kernels::VerifyTask>(tasks_),
                                              .nodes = upload_.at<const kernels::VerifyNode>(nodes_),
                                              .p = p_.mutable_data_ptr<float>(),
                                              .q = q_.mutable_data_ptr<float>(),
                                              .left = left_.mutable_data_ptr<float>(),
                                              .outcomes = result<kernels::VerifyOutcome>(at_.outcomes),
                                              .scores = result<kernels::VerifyScore>(at_.scores),
                                              .num_tasks = static_cast<int32_t>(count),
                                              .vocab = vocab};
    check(library_.verify(device_index(), &verification), "verification");
  }

  // Copies the results to the host and waits for them.
  at::Tensor read_results() {
    const at::Tensor to = copied_.narrow(0, 0, at_.bytes);
    to.copy_(results_.narrow(0, 0, at_.bytes), /*non_blocking=*/true);
    marks_.mark();
    marks_.wait();
    return to;
  }

  // Reads the outcomes. Returns false if some logits were of no use.
  bool take(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, const char* results) const {
    const auto* draft_tokens = reinterpret_cast<const int32_t*>(results + at_.draft_tokens);
    const auto* target_tokens = reinterpret_cast<const int32_t*>(results + at_.target_tokens);
    const auto* confidences = reinterpret_cast<const float*>(results + at_.confidences);
    const auto* verdicts = reinterpret_cast<const kernels::VerifyOutcome*>(results + at_.outcomes);
    const auto* scores = reinterpret_cast<const kernels::VerifyScore*>(results + at_.scores);
    if (std::any_of(draft_tokens, draft_tokens + num_q_, [](int32_t t) { return t < 0; }) ||
        std::any_of(target_tokens, target_tokens + num_nodes_ + static_cast<int64_t>(slots.size()),
                    [](int32_t t) { return t < 0; }))
      return false;
    for (size_t i = 0; i < slots.size(); ++i) {
      RoundOutcome& out = outcomes[i];
      const kernels::VerifyOutcome& verdict = verdicts[i];
      if (verdict.failed != 0) return false;
      out.drafted.assign(slots[i].given.begin(), slots[i].given.end());
      out.confidences.clear(), out.overlaps.clear(), out.ratios.clear();
      out.result = {verdict.accepted, verdict.next, verdict.accepted - 1};
      std::copy(std::begin(verdict.cursors), std::end(verdict.cursors), out.cursors.begin());
      if (slots[i].k > 0 && slots[i].rule != VerifyRule::kTarget && !slots[i].sampling.greedy())
        out.cursors[0] += static_cast<uint64_t>(slots[i].k);
    }
    for (const Level& level : levels_)
      for (size_t row = 0; row < level.slots.size(); ++row) {
        RoundOutcome& out = outcomes[level.slots[row]];
        const kernels::VerifyScore& score =
            scores[first_node_[level.slots[row]] + static_cast<int32_t>(out.drafted.size())];
        out.drafted.push_back(draft_tokens[level.q_row + static_cast<int64_t>(row)]);
        out.confidences.push_back(static_cast<double>(confidences[level.q_row + static_cast<int64_t>(row)]));
        out.overlaps.push_back(score.overlap);
        out.ratios.push_back(score.ratio);
      }
    return true;
  }

  void commit(std::span<const RoundSlot> slots, std::span<const RoundOutcome> outcomes) {
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::vector<int32_t>& drafted = outcomes[i].drafted;
      std::copy(drafted.begin(), drafted.end(), extended_[i].begin() + 1);
      model::KvCache& cache = target_.cache(slots[i].target);
      if (cache.records()) cache.record(extended_[i], {});
      cache.commit(static_cast<int64_t>(extended_[i].size()));
    }
    target_.keep_observed(extensions_, lengths_);
    for (size_t l = 0; l < levels_.size(); ++l) {
      const Level& level = levels_[l];
      if (level.first != l) continue;
      for (size_t at = 0; at < level.slots.size(); ++at)
        level.draft->commit(reader_of(slots[level.slots[at]]), outcomes[level.slots[at]].drafted, *level.pass, at);
    }
  }

  void tell(RoundSeconds& seconds) {
    seconds.levels.clear();
    seconds.target = marks_.seconds(levels_.size());
    if (seconds.target == 0) return;
    for (size_t l = 0; l < levels_.size(); ++l) {
      const Level& level = levels_[l];
      const int64_t more = level.pass->num_rows() - static_cast<int64_t>(level.slots.size());
      seconds.levels.push_back({level.drafter, marks_.seconds(l), level.reads ? more : 0});
    }
  }

  RoundTarget& target_;
  const kernels::CudaLibrary& library_;
  at::Device device_;
  model::DeviceUpload upload_;
  Marks marks_;
  std::vector<Level> levels_;
  std::optional<model::CudaPass> pass_;  // the target's
  // By slot: what the target reads, and how long its cache was.
  std::vector<std::vector<int32_t>> extended_;
  std::vector<Extension> extensions_;
  std::vector<int64_t> lengths_;
  std::vector<int32_t> first_node_;  // by slot
  int64_t num_q_ = 0, num_nodes_ = 0;
  size_t nodes_ = 0, tasks_ = 0, target_samples_ = 0;  // places in the upload
  at::Tensor q_, p_, left_;                            // rows [V], on the device
  struct Places {
    size_t draft_tokens, confidences, target_tokens, outcomes, scores;
    int64_t bytes;
  };
  Places at_ = {};               // in the results
  at::Tensor results_, copied_;  // bytes, on the device and on the host
};

}  // namespace

std::unique_ptr<RoundRunner> make_device_round(CausalModel& target) {
  auto* const source = dynamic_cast<RoundTarget*>(&target.innermost());
  const kernels::CudaLibrary* const library = source ? model::cuda_pass_library(source->decoder()) : nullptr;
  return library ? std::make_unique<DeviceRound>(*source, *library) : nullptr;
}

}  // namespace specdec::decode
