#include "engine/decode/device/device_round.h"

#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "engine/config/rope.h"
#include "engine/decode/device/draft_levels.h"
#include "engine/decode/runners/round_models.h"
#include "engine/forward/device_errors.h"
#include "engine/forward/forward_cuda.h"
#include "engine/kernels/cuda_errors.h"

namespace specdec::decode {

namespace {

using kernels::DeviceRule;
using kernels::PagedRows;

static_assert(kNotDrafted == kernels::kAbsentNode);

DeviceRule device_rule(const RoundSlot& slot) {
  const bool chain = slot.tree.empty();
  if (slot.sampling.greedy()) return DeviceRule::kGreedy;
  if (slot.given) return DeviceRule::kTarget;  // tokens from the sequence's own text have no q
  switch (slot.rule) {
    case VerifyRule::kToken:
      return chain ? DeviceRule::kTokenChain : DeviceRule::kTokenTree;
    case VerifyRule::kBlock:
      return chain ? DeviceRule::kBlockChain : DeviceRule::kBlockTree;
    case VerifyRule::kTarget:
      return DeviceRule::kTarget;
    case VerifyRule::kCoupled:
      return DeviceRule::kCoupled;
  }
  throw Error(ErrorKind::kInternal, "unknown verification rule");
}

// Returns the chain that was drafted from the sequence's own text (prompt lookup); empty if there is none.
std::span<const int32_t> given(const RoundSlot& slot) {
  return slot.given ? slot.given->tokens : std::span<const int32_t>();
}

DraftShape shape_of(const RoundSlot& slot) {
  return slot.k > 0 ? DraftShape(slot.tree, slot.k) : DraftShape({}, static_cast<int>(given(slot).size()));
}

// Records CUDA events (marks) on a GPU's stream and measures the times between them. Without a GPU, measures nothing.
class Marks {
 public:
  Marks(at::Device device, const kernels::CudaLibrary& library) : device_(device), library_(library) {}
  void clear() { used_ = 0; }
  void mark() {
    if (!device_.is_cuda()) return;
    if (used_ == events_.size()) events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[used_++].record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  // Waits until the device has reached the last recorded CUDA event.
  void wait() {
    if (used_ > 0)
      events_[used_ - 1].synchronize();
    else
      library_.synchronize(0);
  }
  // Returns the seconds between the CUDA events i and i + 1, or 0 without a GPU.
  double seconds(size_t i) { return i + 1 < used_ ? events_[i].elapsedTime(events_[i + 1]) / 1e3 : 0; }

 private:
  at::Device device_;
  const kernels::CudaLibrary& library_;
  std::vector<c10::Event> events_;
  size_t used_ = 0;
};

// Assigns offsets to arrays in one block of memory.
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
        marks_(device_, library),
        drafts_(library, device_.is_cuda() ? device_.index() : 0) {}

  bool takes(std::span<const RoundSlot> slots) override {
    const model::Decoder& target = target_.decoder();
    if (model::rope_varies(target.config.rope) || target_.pool().dtype() != target.weights.embed.scalar_type())
      return false;
    struct Need {
      std::vector<int64_t> rows;  // number of rows of each pass
      int64_t blocks = 0;         // number of blocks to take from the pool
    };
    int64_t rows = 0, blocks = 0;
    std::map<RoundDraft*, Need> drafts;
    for (const RoundSlot& slot : slots) {
      const DraftShape shape = shape_of(slot);
      const int64_t nodes = shape.num_nodes();
      if (!wants_only_tokens(slot) || nodes + 1 > PagedRows::kMaxRows || nodes > kernels::kMaxVerifyNodes) return false;
      rows += nodes + 1;
      blocks += target_.cache(slot.target).blocks_missing(nodes + 1);
      if (slot.k == 0) continue;
      auto* const draft = dynamic_cast<RoundDraft*>(&slot.drafter->innermost());
      if (!draft || !draft->takes(slot.draft, slot.text, device_)) return false;
      const int64_t unread = draft->unread(slot.draft, slot.text);
      if (unread > PagedRows::kMaxRows) return false;
      Need& need = drafts[draft];
      if (need.rows.size() < static_cast<size_t>(slot.k)) need.rows.resize(static_cast<size_t>(slot.k));
      need.rows[0] += unread;
      for (int depth = 1; depth < slot.k; ++depth) need.rows[static_cast<size_t>(depth)] += shape.size(depth - 1);
      need.blocks += draft->cache(slot.draft).blocks_missing(unread + shape.begin(slot.k - 1));
    }
    for (const auto& [draft, need] : drafts)
      if (need.blocks > draft->pool().available() ||
          *std::max_element(need.rows.begin(), need.rows.end()) > kernels::kMaxProductRows)
        return false;
    return rows <= kernels::kMaxProductRows && blocks <= target_.pool().available();
  }

  bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) override {
    try {
      return model::with_device_errors([&] { return run_all(slots, outcomes, seconds); });
    } catch (...) {
      library_.synchronize(device_index());  // the device must have read the memory before the next round overwrites it
      throw;
    }
  }

 private:
  bool run_all(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) {
    const c10::InferenceMode guard;
    plan(slots);
    describe(slots);
    const int64_t captures = model::PassGraphs::captures();
    marks_.clear();
    marks_.mark();
    upload_.send();
    run_drafts();
    run_target(slots);
    const at::Tensor results = read_results();
    const auto* const host = static_cast<const char*>(results.const_data_ptr());
    if (!take(slots, outcomes, host)) return false;
    advance(slots, outcomes, host);
    commit(slots, outcomes);
    tell(outcomes, seconds);
    // A round that captures a CUDA graph takes longer than usual, so its times are not used.
    if (model::PassGraphs::captures() != captures) seconds.measured = false;
    return true;
  }

  DraftLevels::Slots all(std::span<const RoundSlot> slots) const { return {slots, shapes_, first_node_}; }

  // Reserves room in the caches and describes the passes; the ids of drafted tokens are not known yet.
  void plan(std::span<const RoundSlot> slots) {
    shapes_.clear();
    first_node_.clear();
    num_nodes_ = 0;
    for (const RoundSlot& slot : slots) {
      first_node_.push_back(num_nodes_);
      num_nodes_ += shapes_.emplace_back(shape_of(slot)).num_nodes();
    }
    drafts_.plan(all(slots));
    pass_.emplace(target_.decoder());
    reads_.clear();
    extensions_.clear();
    for (size_t i = 0; i < slots.size(); ++i) {
      const DraftShape& shape = shapes_[i];
      Read& read = reads_.emplace_back();
      read.tokens.assign(static_cast<size_t>(shape.num_nodes() + 1), 0);
      read.tokens[0] = slots[i].text.back();
      std::ranges::copy(given(slots[i]), read.tokens.begin() + 1);
      if (!shape.chain()) {
        read.parents.push_back(-1);
        for (const int32_t parent : shape.parents()) read.parents.push_back(parent + 1);
      }
      extensions_.push_back({slots[i].target, read.tokens, shape.num_nodes() + 1, read.parents});
    }
    target_.reserve(extensions_);
    for (const Extension& e : extensions_) {
      const model::KvCache& cache = target_.cache(e.sequence);
      model::CudaRows::Part part{&cache, cache.length(), e.tokens, e.num_logits};
      std::vector<int64_t> positions;
      if (!e.parents.empty()) {
        positions = tree_depths(e.parents);
        for (int64_t& position : positions) position += cache.length();
        part.allowed = tree_mask(e.parents, 0);
      }
      part.positions = positions;
      pass_->add(part);
    }
  }

  // Returns the first of a sequence's rows in the target's pass.
  int32_t first_row(size_t slot) const { return first_node_[slot] + static_cast<int32_t>(slot); }

  // Fills the upload with all inputs of the round.
  void describe(std::span<const RoundSlot> slots) {
    upload_.clear();
    std::vector<kernels::VerifyNode> nodes(static_cast<size_t>(num_nodes_), {kernels::kAbsentNode, -1, -1, -1});
    std::vector<kernels::VerifyTask> tasks;
    std::vector<kernels::SampleRow> samples;
    for (size_t i = 0; i < slots.size(); ++i) {
      const RoundSlot& slot = slots[i];
      const int32_t count = shapes_[i].num_nodes();
      for (int32_t node = 0; node < count; ++node) {
        kernels::VerifyNode& to = nodes[static_cast<size_t>(first_node_[i] + node)];
        to.parent = shapes_[i].parents()[static_cast<size_t>(node)];
        const bool first_child = node == 0 || shapes_[i].parents()[static_cast<size_t>(node) - 1] != to.parent;
        if (first_child && !slot.sampling.greedy()) to.p_row = first_row(i) + to.parent + 1;
        if (slot.given) to.token = slot.given->tokens[static_cast<size_t>(node)];
      }
      kernels::VerifyTask task = {};
      task.rule = device_rule(slot);
      task.first = first_node_[i], task.count = count, task.p_row = first_row(i);
      task.position = static_cast<int64_t>(slot.text.size());
      task.seed = seeded(slot).seed();
      std::ranges::copy(seeded(slot).cursors(), task.cursors);
      tasks.push_back(task);
      samples.insert(samples.end(), static_cast<size_t>(count) + 1, sample_row(slot));
    }
    drafts_.set_rows(all(slots), nodes);
    drafts_.describe_passes(upload_);
    pass_->describe(upload_, target_.graphs());
    nodes_ = upload_.add(nodes);
    tasks_ = upload_.add(tasks);
    target_samples_ = upload_.add(samples);
    drafts_.describe_draws(all(slots), upload_,
                           [&](size_t slot, int32_t node) { return pass_->id_place(first_row(slot) + 1 + node); });
    const int64_t vocab = target_.decoder().config.vocab_size, count = static_cast<int64_t>(slots.size()),
                  num_q = drafts_.num_rows();
    const auto rows = [&](at::Tensor& memory, int64_t n) {
      if (!memory.defined() || memory.size(0) < n)
        memory = at::empty({n, vocab}, at::TensorOptions(device_).dtype(at::kFloat));
    };
    rows(q_, std::max<int64_t>(num_q, 1));
    rows(p_, num_nodes_ + count);
    rows(left_, count);
    Layout layout;
    at_ = {.draft_tokens = layout.add<int32_t>(num_nodes_),
           .confidences = layout.add<float>(num_nodes_),
           .target_tokens = layout.add<int32_t>(num_nodes_ + count),
           .outcomes = layout.add<kernels::VerifyOutcome>(count),
           .scores = layout.add<kernels::VerifyScore>(num_nodes_),
           .bytes = layout.bytes(),  // number of bytes that the host reads
           .sampled = layout.add<int32_t>(num_q),
           .choices = layout.add<int32_t>(num_q)};
    if (!results_.defined() || results_.numel() < layout.bytes()) {
      results_ = at::empty({2 * layout.bytes()}, at::TensorOptions(device_).dtype(at::kByte));
      copied_ = at::empty({2 * layout.bytes()}, at::TensorOptions(at::kByte).pinned_memory(device_.is_cuda()));
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

  void run_drafts() {
    const DraftLevels::Results results = {.nodes = upload_.at<kernels::VerifyNode>(nodes_),
                                          .tokens = result<int32_t>(at_.draft_tokens),
                                          .confidences = result<float>(at_.confidences),
                                          .sampled = result<int32_t>(at_.sampled),
                                          .choices = result<int32_t>(at_.choices)};
    for (const DraftLevels::Level& level : drafts_.levels()) {
      drafts_.run(level, upload_, q_, results);
      marks_.mark();
    }
  }

  void run_target(std::span<const RoundSlot> slots) {
    const auto count = static_cast<int64_t>(slots.size()), num_p = num_nodes_ + count;
    const auto vocab = static_cast<int32_t>(p_.size(1));
    p_.narrow(0, 0, num_p).copy_(target_.run_pass(*pass_, upload_, extensions_));
    const kernels::SamplePass rows = {.rows = upload_.at<const kernels::SampleRow>(target_samples_),
                                      .logits = p_.mutable_data_ptr<float>(),
                                      .tokens = result<int32_t>(at_.target_tokens),
                                      .choices = nullptr,
                                      .num_rows = static_cast<int32_t>(num_p),
                                      .vocab = vocab};
    check(library_.sample(device_index(), &rows), "sampling");
    const kernels::VerifyPass verification = {.tasks = upload_.at<const kernels::VerifyTask>(tasks_),
                                              .nodes = upload_.at<const kernels::VerifyNode>(nodes_),
                                              .p = p_.mutable_data_ptr<float>(),
                                              .q = q_.mutable_data_ptr<float>(),
                                              .left = left_.mutable_data_ptr<float>(),
                                              .likeliest = result<int32_t>(at_.target_tokens),
                                              .outcomes = result<kernels::VerifyOutcome>(at_.outcomes),
                                              .scores = result<kernels::VerifyScore>(at_.scores),
                                              .num_tasks = static_cast<int32_t>(count),
                                              .num_nodes = num_nodes_,
                                              .vocab = vocab};
    check(library_.verify(device_index(), &verification), "verification");
  }

  // Copies the results to the host and waits for them.
  at::Tensor read_results() {
    const at::Tensor to = copied_.narrow(0, 0, at_.bytes);
    check(library_.copy(device_index(), to.mutable_data_ptr(), results_.const_data_ptr(), at_.bytes), "a copy");
    marks_.mark();
    marks_.wait();
    return to;
  }

  // Reads the outcomes. Returns false if some logits could not be sampled.
  bool take(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, const char* results) const {
    const auto* draft_tokens = reinterpret_cast<const int32_t*>(results + at_.draft_tokens);
    const auto* target_tokens = reinterpret_cast<const int32_t*>(results + at_.target_tokens);
    const auto* confidences = reinterpret_cast<const float*>(results + at_.confidences);
    const auto* verdicts = reinterpret_cast<const kernels::VerifyOutcome*>(results + at_.outcomes);
    const auto* scores = reinterpret_cast<const kernels::VerifyScore*>(results + at_.scores);
    if (std::any_of(target_tokens, target_tokens + num_nodes_ + static_cast<int64_t>(slots.size()),
                    [](int32_t t) { return t == kernels::kBrokenRow; }))
      return false;
    for (size_t i = 0; i < slots.size(); ++i) {
      const RoundSlot& slot = slots[i];
      const kernels::VerifyOutcome& verdict = verdicts[i];
      if (verdict.failed != 0) return false;
      RoundOutcome& out = outcomes[i];
      out.clear();
      out.parents = shapes_[i].parents();
      out.result = {verdict.accepted, verdict.next, verdict.node};
      const std::span<const int32_t> proposed = given(slot);
      out.drafted.assign(proposed.begin(), proposed.end());
      if (slot.k == 0) continue;
      for (int32_t node = first_node_[i]; node < first_node_[i] + shapes_[i].num_nodes(); ++node) {
        if (draft_tokens[node] == kernels::kBrokenRow) return false;
        out.drafted.push_back(draft_tokens[node]);
        out.confidences.push_back(static_cast<double>(confidences[node]));
        out.overlaps.push_back(scores[node].overlap);
        out.ratios.push_back(scores[node].ratio);
      }
      out.stopped_early = shapes_[i].chain() && out.drafted.back() == kNotDrafted;
    }
    return true;
  }

  // Advances the random streams by the numbers that the round has drawn.
  void advance(std::span<const RoundSlot> slots, std::span<const RoundOutcome> outcomes, const char* results) const {
    const auto* const verdicts = reinterpret_cast<const kernels::VerifyOutcome*>(results + at_.outcomes);
    for (size_t i = 0; i < slots.size(); ++i) {
      const RoundSlot& slot = slots[i];
      if (slot.sampling.greedy()) continue;
      std::array<uint64_t, 4> cursors;
      std::ranges::copy(verdicts[i].cursors, cursors.begin());
      if (slot.k > 0 && slot.rule != VerifyRule::kTarget)
        cursors[0] +=
            static_cast<uint64_t>(std::ranges::count_if(outcomes[i].drafted, [](int32_t token) { return token >= 0; }));
      seeded(slot).set_cursors(cursors);
    }
  }

  void commit(std::span<const RoundSlot> slots, std::span<const RoundOutcome> outcomes) {
    for (size_t i = 0; i < slots.size(); ++i) {
      std::copy(outcomes[i].drafted.begin(), outcomes[i].drafted.end(), reads_[i].tokens.begin() + 1);
    }
    target_.commit_pass(extensions_);
    for (const DraftLevels::Level& level : drafts_.levels())
      for (size_t at = 0; level.depth == 0 && at < level.slots.size(); ++at) {
        const size_t i = level.slots[at];
        const std::span<const int32_t> drafted = outcomes[i].drafted;
        level.draft->commit({slots[i].draft, slots[i].text, &shapes_[i]}, drafted.first(nodes_read(i, drafted)),
                            *level.pass, at);
      }
  }

  // Returns how many nodes the draft has processed. It never processes those of the last level. In a chain that stopped
  // early, the last token may be unprocessed, because the next pass does nothing if all sequences have stopped.
  size_t nodes_read(size_t i, std::span<const int32_t> drafted) const {
    const DraftShape& shape = shapes_[i];
    const auto all = static_cast<size_t>(shape.begin(shape.levels() - 1));
    if (!shape.chain()) return all;
    const auto absent = std::find(drafted.begin(), drafted.end(), kNotDrafted);
    return std::min(all, static_cast<size_t>(absent - drafted.begin()) - 1);
  }

  void tell(std::span<const RoundOutcome> outcomes, RoundSeconds& seconds) {
    const std::vector<DraftLevels::Level>& levels = drafts_.levels();
    seconds.levels.clear();
    seconds.target = marks_.seconds(levels.size());
    seconds.measured = seconds.target > 0;
    if (!seconds.measured) return;
    for (size_t l = 0; l < levels.size(); ++l) {
      const DraftLevels::Level& level = levels[l];
      const auto takes_part = [&](size_t slot) {
        return outcomes[slot].drafted[static_cast<size_t>(shapes_[slot].begin(level.depth))] != kNotDrafted;
      };
      if (level.may_rest && std::none_of(level.slots.begin(), level.slots.end(), takes_part)) continue;
      const int64_t more = level.pass->num_rows() - level.num_rows;
      seconds.levels.push_back({level.drafter, marks_.seconds(l), level.reads ? more : 0});
    }
  }

  RoundTarget& target_;
  const kernels::CudaLibrary& library_;
  at::Device device_;
  model::DeviceUpload upload_;
  Marks marks_;
  std::vector<DraftShape> shapes_;  // indexed by slot
  DraftLevels drafts_;
  std::optional<model::CudaPass> pass_;  // the target's pass
  // Indexed by slot: the tokens and parents that the target reads (Extension).
  struct Read {
    std::vector<int32_t> tokens, parents;
  };
  std::vector<Read> reads_;
  std::vector<Extension> extensions_;
  std::vector<int32_t> first_node_;
  int32_t num_nodes_ = 0;
  size_t nodes_ = 0, tasks_ = 0, target_samples_ = 0;  // offsets of these arrays in the upload
  at::Tensor q_, p_, left_;                            // rows [V] on the device: draft, target, residuals
  struct Places {
    size_t draft_tokens, confidences, target_tokens, outcomes, scores;
    int64_t bytes;
    size_t sampled, choices;
  };
  Places at_ = {};               // offsets in the results
  at::Tensor results_, copied_;  // bytes, on the device and on the host
};

}  // namespace

std::unique_ptr<RoundRunner> make_device_round(CausalModel& target) {
  auto* const source = dynamic_cast<RoundTarget*>(&target.innermost());
  const kernels::CudaLibrary* const library = source ? model::cuda_pass_library(source->decoder()) : nullptr;
  return library ? std::make_unique<DeviceRound>(*source, *library) : nullptr;
}

std::unique_ptr<CausalModel> with_rounds(std::unique_ptr<CausalModel> target) {
  if (std::shared_ptr<RoundRunner> rounds = make_device_round(*target))
    dynamic_cast<RoundTarget&>(*target).set_rounds(std::move(rounds));
  return target;
}

}  // namespace specdec::decode
